/* Orders that the copying threads make themselves, between two turns of the daemon's loop: fills of
 * files that somebody waits for, in room that policy has granted. */
#ifndef MONARCH_GRANT_H
#define MONARCH_GRANT_H

#include "engine/pool.h"

/* The order, in nobody's queue, to fill a file that no copy is made of; NULL where the grant does
 * not go so far. The caller has the writer's lock and the pool's. */
struct job *monarch_place_granted(struct pool *p, struct monarch_catalog *c, uint64_t id);
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
