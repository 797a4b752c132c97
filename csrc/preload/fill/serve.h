/* Decides whether an open gets the copy or the source's file. */
#pragma once

#include <fcntl.h>

#include "preload/lookup/where.h"
#include "preload/session/copies.h"

/* The result of a path's look-up, for a caller that is about to open the path for reading. */
struct monarch_opening {
    const struct monarch_entry *entry; /* NULL: the catalog does not know the path */
    /* number of the entry; MONARCH_OUTSIDE: the path is in no source; MONARCH_UNKNOWN: the path is
     * in a source, but not in the catalog */
    int64_t id;
    int served;       /* 1: the copy is to be opened, at the path in the field `copy` */
    uint32_t version; /* if served is 0: the entry's version at the look-up */
    uint64_t word;    /* if served is 1: the entry's word, which names the copy */
    int waited;       /* 1: the open had to wait for the copy */
    /* 1: the path does not begin with the name of a source, but may lead into a source through a
     * link (is_new in struct monarch_aim). After the open, the caller must call
     * monarch_opened_elsewhere. */
    int is_new;
    /* 1: the file is claimed: the program itself reads the source's file, and the daemon makes the
     * copy afterwards (handover.h) */
    int claimed;
    /* 1: the library must neither claim the file nor track its descriptor (is_left_alone) */
    int is_alone;
    char copy[MONARCH_COPY_PATH];
};

/* Looks up a path for an open or a similar call, and stores the result in *out. If the file has no
 * copy, does one of two things. If the program should read the file directly (handover.h), claims
 * the file and sets out->claimed to 1. Otherwise asks the daemon to fill the file. */
void monarch_look_up(struct session *s, int dir, const char *path, int flags,
                     struct monarch_opening *out);
/* The next two functions are the two steps of monarch_look_up. The first step returns 0 if there
 * is nothing to look up. Otherwise, it may guess the copy: if it sets out->word to a value other
 * than 0, out->copy is the path of the guessed copy. The caller can open the guessed copy before
 * the second step, so that the kernel's work overlaps with the cache misses of the look-up. The
 * guess was right if, after the second step, out->served is 1 and out->word still names the
 * guessed copy. */
int monarch_begin_look_up(struct session *s, int dir, const char *path, int flags,
                          struct monarch_aim *a, struct monarch_opening *out);
void monarch_end_look_up(struct session *s, struct monarch_aim *a, int dir, const char *path,
                         int flags, struct monarch_opening *out);
/* Returns whether an unfinished copy can serve an open with these flags. */
static inline int monarch_is_plain(int flags) {
    return !(flags & ~(O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK | O_LARGEFILE));
}

/* Returns the flags with which the library opens a copy if the program has passed `flags`. Adds
 * O_NOFOLLOW, so that the open does not follow a link in the place of the copy. If the program
 * itself has passed O_NOFOLLOW, also adds O_DSYNC to record that. The program's own O_DSYNC cannot
 * be mixed up with this, because an open with O_DSYNC never gets a copy. */
static inline int monarch_copy_flags(int flags) {
    return flags | O_NOFOLLOW | (__builtin_expect(flags & O_NOFOLLOW, 0) ? O_DSYNC : 0);
}
/* Returns the flags that F_GETFL must show for a copy's descriptor: the flags with which the
 * program opened the file. */
static inline int monarch_flags_of_copy(int flags) {
    return flags & ~(flags & O_DSYNC ? O_DSYNC : O_NOFOLLOW);
}

/* Call this after a successful open at the source. flags: the flags of the open. took_ns: the
 * duration of the open. fd: the result of the open. */
void monarch_opened_source(struct session *s, const struct monarch_opening *o, int flags,
                           uint64_t took_ns, int fd);
/* Call this after an open at the source has failed. If the file was claimed, ends the claim and
 * asks the daemon to fill the file. If the file was removed or replaced, the fill fails too, so
 * the daemon learns of the change. */
void monarch_not_opened(struct session *s, const struct monarch_opening *o);
void monarch_opened_copy(struct session *s, const struct monarch_opening *o);

/* Call this after an open of a path whose look-up has found no source. Returns whether the path
 * leads to a file of a source through a link. fd: the result of the open. */
static inline int monarch_opened_elsewhere(struct session *s, const struct monarch_opening *o,
                                           const char *path, int fd) {
    return __builtin_expect(o->is_new, 0) && monarch_learn_open(s, path, fd);
}
