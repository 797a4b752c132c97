/* Handles paths that lie outside every source but lead into a source through a link.
 *
 * Examples: ~/data -> /pfs/imagenet, or a directory full of links to single files. Each process
 * has a small table of the directories that the process has used. For each directory, the table
 * stores where it leads. The table contains only hints: before the library serves a copy, it checks
 * the hint by a system call. So hints may be outdated or lost, and the table needs no lock. */
#pragma once

#include <sys/stat.h>

#include "preload/process/attributes.h"
#include "preload/session/session.h"

enum monarch_lead {
    MONARCH_LEAD_NEW, /* nothing is known about the directory, or the library must check it again */
    MONARCH_LEAD_ELSEWHERE,
    MONARCH_LEAD_DIRECTORY, /* the first `prefix` bytes of the path name a source's directory */
    MONARCH_LEAD_FILES,     /* the directory is in no source, but leads to files of a source */
};

struct monarch_hint {
    enum monarch_lead lead;
    size_t prefix;
};

/* Atomic. 1: this process has used a path that leads into a source through a link. In nearly all
 * processes, the value is 0. */
extern uint32_t monarch_links_met HIDDEN;

/* Returns the table's hint for a path of `n` bytes. The path is absolute or relative to the working
 * directory. */
struct monarch_hint monarch_hint_for(const char *path, size_t n);

/* Returns the entry of the source's directory to which the first `prefix` bytes of `path` lead now.
 * If there is no such directory, removes the hint for `path` from the table and returns NULL. */
const struct monarch_entry *monarch_enter_directory(struct session *s,
                                                    const struct monarch_catalog *c,
                                                    const char *path, size_t prefix);
/* Returns the number of the catalog's entry for the file to which `path` leads now. Returns
 * MONARCH_OUTSIDE if there is no such entry, or if the file has changed since the scan. Makes one
 * system call that accesses the source. Sets *version to the entry's version. As long as the entry
 * has this version, it describes this file. */
int64_t monarch_enter_file(struct session *s, const struct monarch_catalog *c, int dir,
                           const char *path, int follow, uint32_t *version);

/* Call this after an open of a path for which the look-up has set is_new (struct monarch_aim).
 * Finds out where the path leads, and stores the result in the table. Returns whether the path
 * leads to a file of a source. If so, look the path up again: the look-up now finds the file if
 * the catalog contains it. fd: the result of the open. */
int monarch_learn_open(struct session *s, const char *path, int fd);
/* The next functions find out where a path leads, and store the result in the table. Call
 * monarch_learn_stat after a successful stat, and monarch_learn_listed after an opendir. For a
 * path that leads to a file, monarch_learn_stat does nothing: programs call stat for many files,
 * and this would take too long. */
void monarch_learn_directory(const char *path, const struct stat *st);
static inline void monarch_learn_stat(const char *path, const struct stat *st) {
    if (__builtin_expect(S_ISDIR(st->st_mode), 0))
        monarch_learn_directory(path, st);
}
void monarch_learn_listed(const char *path, int fd);
