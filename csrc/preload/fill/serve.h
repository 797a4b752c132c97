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

/* Looks up a path for an open-like call; *out says what serves it. If the file has no copy, tells
 * the daemon that a copy is wanted, unless the program's own reads are to be the fill
 * (`claimed`). */
void monarch_look_up(struct session *s, int dir, const char *path, int flags,
                     struct monarch_opening *out);
/* monarch_look_up in two steps. Between them the caller can open the copy that the first step
 * guesses, so that the kernel's work overlaps with the cache misses of the look-up. The first step
 * returns 0 if there is nothing to look up. Unless it leaves out->word 0, out->copy is probably the
 * path to open. The guess was right if the second step sets out->served to 1 and leaves out->word
 * naming the same copy. */
int monarch_begin_look_up(struct session *s, int dir, const char *path, int flags,
                          struct monarch_aim *a, struct monarch_opening *out);
void monarch_end_look_up(struct session *s, struct monarch_aim *a, int dir, const char *path,
                         int flags, struct monarch_opening *out);
/* Whether an open with these flags asks for nothing that an unfinished copy cannot give. */
static inline int monarch_is_plain(int flags) {
    return !(flags & ~(O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK | O_LARGEFILE));
}

/* Returns the flags with which a copy is opened for a program that opened the file with `flags`.
 * O_NOFOLLOW is added, so that a link in the copy's place is not followed. O_DSYNC records that the
 * program asked for O_NOFOLLOW itself; it is free for this, because an open with O_DSYNC never gets
 * a copy. */
static inline int monarch_copy_flags(int flags) {
    return flags | O_NOFOLLOW | (__builtin_expect(flags & O_NOFOLLOW, 0) ? O_DSYNC : 0);
}
/* Returns the flags that F_GETFL shows the program for a copy: those with which the program opened
 * the file. */
static inline int monarch_flags_of_copy(int flags) {
    return flags & ~(flags & O_DSYNC ? O_DSYNC : O_NOFOLLOW);
}

/* Called after an open with `flags` at the source, which began at `since_ns` and returned `fd`. */
void monarch_opened_source(struct session *s, const struct monarch_opening *o, int flags,
                           uint64_t since_ns, int fd);
/* Called after an open at the source has failed. If the file was claimed, asks for a fill instead,
 * by which the daemon learns whether the file has changed. */
void monarch_not_opened(struct session *s, const struct monarch_opening *o);
void monarch_opened_copy(struct session *s, const struct monarch_opening *o);

/* Called after an open of a path that, as far as the look-up tells, leads to no source; `fd` is the
 * descriptor. Returns whether the path leads to a file of a source after all. */
static inline int monarch_opened_elsewhere(struct session *s, const struct monarch_opening *o,
                                           const char *path, int fd) {
    return __builtin_expect(o->is_new, 0) && monarch_learn_open(s, path, fd);
}

/* Counts bytes that a program reads at a source itself. On tracked descriptors, callers count each
 * read. Where the library does not see the reads (of streams, of mappings, and of files that are
 * left to the source), they count once, by the size of what can be read. */
void monarch_count_source(struct session *s, uint64_t n_bytes);
/* Counts the `n` bytes that were read from `fd`, if `fd` is tracked. Other descriptors are not the
 * source's, or were counted when they were opened. Returns n. `at` is the offset where the read
 * began, or -1 for a read at the descriptor's own offset. */
ssize_t monarch_count_read(int fd, ssize_t n, off_t at);
