/* From an open to what serves it: the copy, or the source. */
#ifndef MONARCH_SERVE_H
#define MONARCH_SERVE_H

#include <fcntl.h>

#include <sys/types.h>

#include "preload/lookup/where.h"
#include "preload/session/copies.h"

/* What an open for reading leads to. */
struct monarch_opening {
    const struct monarch_entry *entry; /* NULL for a path that the catalog does not know */
    int64_t id;                        /* MONARCH_OUTSIDE: nothing of ours */
    int served;                        /* `copy` is the path to open instead */
    uint32_t version;                  /* else: of the entry when it was looked up */
    uint64_t word;                     /* with `served`: names the copy */
    int waited;                        /* the copy was not there at first */
    int is_new;                        /* then: see monarch_opened_elsewhere */
    int claimed;                       /* its copy is not wanted yet: see monarch_claim_file */
    char copy[MONARCH_COPY_PATH];
};

/* For open-like calls. A file that has no copy is wanted from here on: the daemon hears of it. */
void monarch_look_up(struct session *s, int dir, const char *path, int flags,
                     struct monarch_opening *out);
/* The same in two steps, so that a copy can be opened between them: the kernel then works while the
 * entry comes from memory. The first returns 0 if there is nothing to look up, and guesses: unless
 * out->word is 0, out->copy is likely the copy. The second says whether it was. */
int monarch_begin_look_up(struct session *s, int dir, const char *path, int flags,
                          struct monarch_aim *a, struct monarch_opening *out);
void monarch_end_look_up(struct session *s, struct monarch_aim *a, int dir, const char *path,
                         int flags, struct monarch_opening *out);
/* Whether an open with these flags asks for nothing that a copy in the making does not have. */
static inline int monarch_is_plain(int flags) {
    return !(flags & ~(O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK | O_LARGEFILE));
}

/* Flags for an open(2) of a copy that the program keeps: a link in its place is not followed.
 * O_DSYNC, with which no program gets a copy, tells that it asked for O_NOFOLLOW itself. */
static inline int monarch_copy_flags(int flags) {
    return flags | O_NOFOLLOW | (__builtin_expect(flags & O_NOFOLLOW, 0) ? O_DSYNC : 0);
}
/* What the program would see of them with F_GETFL. */
static inline int monarch_flags_of_copy(int flags) {
    return flags & ~(flags & O_DSYNC ? O_DSYNC : O_NOFOLLOW);
}

/* After the open with `flags`, begun at `since_ns`: `fd` is of the source's file. */
void monarch_opened_source(struct session *s, const struct monarch_opening *o, int flags,
                           uint64_t since_ns, int fd);
/* An open at the source has failed: the daemon learns from a fill whether the file has changed. */
void monarch_not_opened(struct session *s, const struct monarch_opening *o);
void monarch_opened_copy(struct session *s, const struct monarch_opening *o);

/* After an open of `path` that leads to nothing of ours as far as we know, with `fd`. Returns
 * whether it does lead to a file of ours. */
static inline int monarch_opened_elsewhere(struct session *s, const struct monarch_opening *o,
                                           const char *path, int fd) {
    return __builtin_expect(o->is_new, 0) && monarch_learn_open(s, path, fd);
}

/* Adds what a program reads at a source itself. Reads of tracked descriptors are counted byte by
 * byte; what the library does not see is counted once, by the size of what can be read: streams,
 * mappings, and files that are left to the source. */
void monarch_count_source(struct session *s, uint64_t n_bytes);
/* Counts the n bytes that `fd` gave, which are the source's as long as it is tracked; returns n.
 * `at`: where they began; -1: at the descriptor's own offset. */
ssize_t monarch_count_read(int fd, ssize_t n, off_t at);

#endif
