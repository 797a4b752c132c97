/* The paths of copies and of the files that they are of, and the way back from what the kernel says
 * of a descriptor. */
#ifndef MONARCH_COPIES_H
#define MONARCH_COPIES_H

#include <string.h>
#include <sys/stat.h>

#include "preload/session/session.h"
#include "shared/bytes.h"

/* Room for the path of a copy. */
#define MONARCH_COPY_PATH (MONARCH_TIER_PATH + 16) /* a name is written as 16 digits */

/* Every open writes a name: 16 hexadecimal digits at once, of which the number's are the first. */
static inline void monarch_copy_path(const struct monarch_tier *tier, uint64_t number, char *out) {
    const unsigned unused = 4 * (16 - MONARCH_COPY_NAME);
    two_words bytes = {__builtin_bswap64(number << unused), 0};
    sixteen_bytes high = (sixteen_bytes)bytes >> 4, low = (sixteen_bytes)bytes & 15;
    sixteen_bytes digits = __builtin_shuffle(
        high, low, (sixteen_bytes){0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
    char *name = out + tier->path_len;
    memcpy(out, tier->path, tier->path_len);
    *(sixteen_bytes *)name = digits + '0' + ((sixteen_bytes)(digits > 9) & ('a' - '0' - 10));
    name[MONARCH_COPY_NAME] = 0;
}

/* The entry's path at the source (MONARCH_PATH_MAX bytes); 0 if it is longer. */
int monarch_source_path(const struct session *s, const struct monarch_catalog *c,
                        const struct monarch_entry *e, char *path);
/* Whether a file of which the kernel says `st` is what the catalog says of it. */
int monarch_is_as_scanned(const struct session *s, const struct monarch_entry *e,
                          const struct stat *st);

int monarch_has_mode_of_copy(unsigned mode);
/* The entry whose copy `st` describes, or NULL; of `st` the device, inode, mode, links, size and
 * time of modification are looked at. *s : the newest session; on return the one that the entry is
 * in, like *c. Descriptors outlive the daemon that made their copies. */
const struct monarch_entry *
monarch_behind_copy(struct session **s, const struct monarch_catalog **c, const struct stat *st);

#endif
