/* Decides what serves an open: the copy or the source. */
#pragma once

#include <fcntl.h>

#include <sys/types.h>

#include "preload/lookup/where.h"
#include "preload/session/copies.h"

/* What an open for reading leads to. */
struct monarch_opening {
    const struct monarch_entry *entry; /* NULL: the catalog does not know the path */
    int64_t id;                        /* number of the entry; MONARCH_OUTSIDE: in no source */
    int served;                        /* 1: `copy` is the path to open instead */
    uint32_t version;                  /* if not served: the entry's version at the look-up */
    uint64_t word;                     /* if served: names the copy */
    int waited;                        /* 1: the copy was not there at first */
    int is_new;                        /* 1: see monarch_opened_elsewhere */
    int claimed;                       /* 1: the program's reads are to be the fill */
    char copy[MONARCH_COPY_PATH];
};

/* Looks up a path for an open-like call; *out says what serves it. If the file has no copy, the
 * daemon is told that one is wanted from here on, unless the program's reads are to be the fill
 * (`claimed`). */
void monarch_look_up(struct session *s, int dir, const char *path, int flags,
                     struct monarch_opening *out);
/* monarch_look_up in two steps, between which a copy can be opened: the kernel then works while the
 * entry comes from memory. The first step returns 0 if there is nothing to look up. It also guesses
 * the copy: unless out->word is 0, out->copy is probably the path to open. The second step shows
 * whether it is: out->served is 1, and out->word names the same copy as before. */
int monarch_begin_look_up(struct session *s, int dir, const char *path, int flags,
                          struct monarch_aim *a, struct monarch_opening *out);
void monarch_end_look_up(struct session *s, struct monarch_aim *a, int dir, const char *path,
                         int flags, struct monarch_opening *out);
/* Whether an open with these flags asks only for what a copy in the making can give. */
static inline int monarch_is_plain(int flags) {
    return !(flags & ~(O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK | O_LARGEFILE));
}

/* Flags for an open(2) of a copy that the program keeps. O_NOFOLLOW is added, so that a link in the
 * copy's place is not followed. O_DSYNC, with which no program gets a copy, records that the
 * program asked for O_NOFOLLOW itself. */
static inline int monarch_copy_flags(int flags) {
    return flags | O_NOFOLLOW | (__builtin_expect(flags & O_NOFOLLOW, 0) ? O_DSYNC : 0);
}
/* The flags that F_GETFL shows the program for a copy. */
static inline int monarch_flags_of_copy(int flags) {
    return flags & ~(flags & O_DSYNC ? O_DSYNC : O_NOFOLLOW);
}

/* Called after an open with `flags` at the source, which began at `since_ns` and returned `fd`. */
void monarch_opened_source(struct session *s, const struct monarch_opening *o, int flags,
                           uint64_t since_ns, int fd);
/* Called after an open at the source has failed: asks for a fill of a claimed file, by which the
 * daemon learns whether the file has changed. */
void monarch_not_opened(struct session *s, const struct monarch_opening *o);
void monarch_opened_copy(struct session *s, const struct monarch_opening *o);

/* Called after an open of a path that, as far as the look-up tells, leads to no source; `fd` is the
 * descriptor. Returns whether the path leads to a file of a source after all. */
static inline int monarch_opened_elsewhere(struct session *s, const struct monarch_opening *o,
                                           const char *path, int fd) {
    return __builtin_expect(o->is_new, 0) && monarch_learn_open(s, path, fd);
}

/* Counts bytes that a program reads at a source itself. Reads of tracked descriptors are counted
 * byte by byte. What the library does not see is counted once, by the size of what can be read:
 * streams, mappings, and files that are left to the source. */
void monarch_count_source(struct session *s, uint64_t n_bytes);
/* Counts the n bytes that were read from `fd`, if it is tracked: only then are they the source's.
 * Returns n. `at` is the offset where they began; -1: the descriptor's own offset. */
ssize_t monarch_count_read(int fd, ssize_t n, off_t at);
