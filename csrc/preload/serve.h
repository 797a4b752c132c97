/* Reads are served through these; the interposed functions only choose. */
#ifndef MONARCH_SERVE_H
#define MONARCH_SERVE_H

#include "where.h"

/* Room for the path of a copy. */
#define MONARCH_COPY_PATH (MONARCH_TIER_PATH + 16) /* a name is written as 16 digits */

/* What an open for reading leads to. */
struct monarch_opening {
    const struct monarch_entry *entry; /* NULL for a path that the catalog does not know */
    int64_t id;                        /* MONARCH_OUTSIDE: nothing of ours */
    int served;                        /* `copy` is the path to open instead */
    uint64_t word;                     /* then: names the copy */
    int waited;                        /* the copy was not there at first */
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
void monarch_end_look_up(struct session *s, const struct monarch_aim *a, int dir, const char *path,
                         int flags, struct monarch_opening *out);
/* For an open whose reads are not seen (streams): waits a little for a copy that is not there yet.
 * Whether it is there now; then `copy` is the path to open. */
int monarch_wait_for_copy(struct session *s, struct monarch_opening *o);

/* After the open with `flags`: `fd` is of the source's file. */
void monarch_opened_source(struct session *s, const struct monarch_opening *o, int flags, int fd);
void monarch_opened_copy(struct session *s, const struct monarch_opening *o);

/* The entry's path at the source (MONARCH_PATH_MAX bytes); 0 if it is longer. */
int monarch_source_path(const struct session *s, const struct monarch_catalog *c,
                        const struct monarch_entry *e, char *path);
/* `n` bytes of a file without a copy are asked for: whether that is reason enough, with what this
 * process has asked for before, to fill it. Then the daemon hears of it. */
int monarch_want(struct session *s, const struct monarch_entry *e, uint64_t id, uint64_t n);

void monarch_copy_path(const struct monarch_tier *tier, uint64_t number, char *out);

#endif
