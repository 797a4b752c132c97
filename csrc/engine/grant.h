/* Orders that the copying threads make themselves, between two turns of the daemon's loop: fills of
 * files that somebody waits for, in room that policy has granted. */
#ifndef MONARCH_GRANT_H
#define MONARCH_GRANT_H

#include "native.h"

struct job;
struct pool;
struct worker;

/* The most demands without an order that a thread notes at one look. */
#define MONARCH_UNORDERED 8

/* All of it is under the pool's lock. While a grant holds, words of entries become FILLING by the
 * threads alone; without one, by Python alone. So neither needs to see the other's decisions. */
struct grant {
    int holds;
    uint32_t turns; /* of the daemon's loop so far, atomic */
    uint32_t meets; /* see monarch_engine_grant */
    uint32_t tiers;
    struct monarch_room room[MONARCH_MAX_TIERS]; /* what is left of it */
    uint64_t next_copy;                          /* the next one's number */
    /* By entry, whom a fill asks; NULL: this node is alone and keeps every file. */
    struct monarch_home *home;
    uint64_t homes;
    /* Ordered since Python last asked. */
    struct monarch_placed placed[MONARCH_PLACED];
    uint64_t placed_count;
    /* Demands, at their places, that a thread has looked at. No thread looks at one again; at one
     * that is early, a thread does so under the next grant. */
    uint64_t refused[MONARCH_DEMANDS];
    uint8_t is_early[MONARCH_DEMANDS];
    uint32_t leaves; /* the loop has something to do, and has not rested since: a futex, atomic */
};

/* The order, in nobody's queue, to fill a file that no copy is made of; NULL where the grant does
 * not go so far. The caller has the writer's lock and the pool's. */
struct job *monarch_place_granted(struct pool *p, struct monarch_catalog *c, uint64_t id);
/* Whether a thread has still to look at a demand without an order. */
int monarch_may_order(const struct pool *p, unsigned place, uint64_t demand);
/* Orders what the thread has met without an order (me->unordered), as far as the grant goes; the
 * rest is left to Python. The caller has no lock. */
void monarch_order_demanded(struct pool *p, struct worker *me);
/* Whether an order has ended in a way that ends the loop's rest: a fill that was not published, as
 * its file may be another one by now; or else, if somebody waits for what the loop could not order.
 * The caller has the pool's lock. */
int monarch_leaves_again(struct pool *p, const struct job *job);
/* Wakes the daemon's loop from its rest or sleep. */
void monarch_end_rest(struct pool *p);

#endif
