/* The block sums and digests of complete copies, as their fills recorded them. The server sends
 * these sums to peers instead of new ones, so that peers detect bytes that have changed since the
 * fill. */
#pragma once

#include <stdint.h>

#include "peers/mac.h"

struct monarch_sums;
/* The sums of one copy. They are freed when the last reference to them is released. */
struct monarch_sums_held {
    struct monarch_sums_held *next;
    uint64_t copy, blocks, holders; /* holders: number of references, including the table's own */
    /* digests of the blocks, stored after `sums` in the same allocation; NULL: not known */
    struct monarch_digest *digests;
    uint64_t sums[];
};

struct monarch_sums *monarch_sums_new(void); /* NULL if memory is exhausted */
/* Stores the sums of a copy's blocks in the table. digests: NULL if they are not known. Stores
 * nothing for a copy of one block: for a million such copies, the sums would take much memory and
 * save little time. The server checks such a copy against the catalog's sum of the file. Also
 * stores nothing if memory is exhausted. */
void monarch_sums_keep(struct monarch_sums *s, uint64_t copy, const uint64_t *sums,
                       const struct monarch_digest *digests, uint64_t blocks);
void monarch_sums_drop(struct monarch_sums *s, uint64_t copy);
/* Returns the sums of a copy that has `blocks` blocks, or NULL if they are not known. Takes a
 * reference: the sums stay valid until monarch_sums_release, even if the copy is removed. */
struct monarch_sums_held *monarch_sums_hold(struct monarch_sums *s, uint64_t copy, uint64_t blocks);
void monarch_sums_release(struct monarch_sums *s, struct monarch_sums_held *k); /* k may be NULL */
void monarch_sums_free(struct monarch_sums *s);
