/* Builds the paths of copies and of source files, and finds a copy's entry by the copy's
 * attributes. */
#pragma once

#include <string.h>
#include <sys/stat.h>

#include "preload/session/session.h"
#include "shared/bytes.h"

/* Size of a buffer for the path of a copy. A copy's name has only 13 digits, but monarch_copy_path
 * always writes 16. */
#define MONARCH_COPY_PATH (MONARCH_TIER_PATH + 16)

/* Writes the path of the copy that `word` names. Every open of a copy calls this function, so it
 * must be fast: it computes 16 hexadecimal digits at once. The first MONARCH_COPY_NAME digits are
 * the copy's name. */
static inline void monarch_copy_path(const struct session *s, uint64_t word, char *out) {
    const struct monarch_tier *tier = &s->control->tier[MONARCH_WORD_TIER(word)];
    const unsigned unused = 4 * (16 - MONARCH_COPY_NAME);
    two_words bytes = {__builtin_bswap64(MONARCH_WORD_COPY(word) << unused), 0};
    sixteen_bytes high = (sixteen_bytes)bytes >> 4, low = (sixteen_bytes)bytes & 15;
    sixteen_bytes digits = __builtin_shuffle(
        high, low, (sixteen_bytes){0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
    char *name = out + tier->path_len;
    memcpy(out, tier->path, tier->path_len);
    *(sixteen_bytes *)name = digits + '0' + ((sixteen_bytes)(digits > 9) & ('a' - '0' - 10));
    name[MONARCH_COPY_NAME] = 0;
}

/* Writes to `path` (MONARCH_PATH_MAX bytes) the path that the entry's file has at the source.
 * Returns 0 if the file's path is too long. */
int monarch_source_path(const struct session *s, const struct monarch_catalog *c,
                        const struct monarch_entry *e, char *path);
/* Returns whether `st` describes the entry's file, and the file is unchanged since the scan. */
int monarch_is_as_scanned(const struct session *s, const struct monarch_entry *e,
                          const struct stat *st);

int monarch_has_mode_of_copy(unsigned mode);
/* If `st` describes a copy, returns the entry of the copied file. Otherwise returns NULL. Uses
 * only the device, inode, mode, link count, size and mtime in `st`. Before the call, *s must be
 * the newest session. Sets *s and *c to the session and the catalog of the entry. This may be the
 * session of an earlier daemon, because a program may keep a copy open after the daemon has
 * ended. */
const struct monarch_entry *
monarch_behind_copy(struct session **s, const struct monarch_catalog **c, const struct stat *st);
