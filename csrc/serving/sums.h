/* The sums and digests of the blocks of whole copies, as their fills recorded them. The server
 * answers peers with them, so that they are not computed again, and bytes that have rotted since
 * are not sent as right. */
#pragma once

#include <stdint.h>

#include "peers/mac.h"

struct monarch_sums;
/* The sums of one copy, while somebody holds them. */
struct monarch_sums_held {
    struct monarch_sums_held *next;
    uint64_t copy, blocks, holders; /* holders: the chain is one of them */
    struct monarch_digest *digests; /* behind the sums; NULL: not known */
    uint64_t sums[];
};

struct monarch_sums *monarch_sums_new(void); /* NULL without memory */
/* Keeps the sums of a copy's blocks. digests: NULL if they are not known. The sums of a copy of one
 * block are not kept: for a million such copies they would take much memory and save little time,
 * and a small copy is looked through before it is sent, so that a rotten one is not sent at all.
 * Without memory no sums are kept either. */
void monarch_sums_keep(struct monarch_sums *s, uint64_t copy, const uint64_t *sums,
                       const struct monarch_digest *digests, uint64_t blocks);
void monarch_sums_drop(struct monarch_sums *s, uint64_t copy);
/* Returns the sums of a copy of `blocks` blocks; NULL if they are not known. They stay until they
 * are released, even after a drop. */
struct monarch_sums_held *monarch_sums_hold(struct monarch_sums *s, uint64_t copy, uint64_t blocks);
void monarch_sums_release(struct monarch_sums *s, struct monarch_sums_held *k); /* k may be NULL */
void monarch_sums_free(struct monarch_sums *s);
