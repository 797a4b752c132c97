/* What the copying threads order themselves, between two turns of the daemon's loop: fills of files
 * that somebody waits for, in room that policy has granted. */
#ifndef MONARCH_GRANT_H
#define MONARCH_GRANT_H

#include "native.h"

struct pool;
struct worker;

/* Demands for which the engine has no order and that one look of a thread takes along. */
#define MONARCH_UNORDERED 8

/* All of it is under the pool's lock. While a grant holds, words of entries become FILLING by the
 * threads alone; without one, by Python alone. So neither needs to see the other's decisions. */
struct grant {
    int holds;
    uint32_t tiers;
    struct monarch_room room[MONARCH_MAX_TIERS]; /* what is left of it */
    uint64_t next_copy;                          /* the next one's number */
    /* By entry, whom a fill asks; NULL: this node is alone and keeps every file. */
    struct monarch_home *home;
    uint64_t homes;
    /* Ordered since Python last asked. */
    struct monarch_placed placed[MONARCH_PLACED];
    uint64_t placed_count;
    /* Demands that Python decides on, at their places; of those that came without a grant, the next
     * one may still decide. */
    uint64_t refused[MONARCH_DEMANDS];
    uint8_t is_early[MONARCH_DEMANDS];
    /* One was refused under this grant: a futex, atomic. */
    uint32_t leaves;
};

/* Whether a thread has still to see if it may order what a demand without an order waits for. */
int monarch_may_order(const struct pool *p, unsigned place, uint64_t demand);
/* Orders what the thread has met without an order (me->unordered), as far as the grant goes; the
 * rest is left to Python. The caller has no lock. */
void monarch_order_demanded(struct pool *p, struct worker *me);

#endif
