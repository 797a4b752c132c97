/* Fills that the copying threads order themselves, in room that policy has granted. The threads
 * order fills between two iterations of the daemon's loop, for files that somebody waits for. */
#pragma once

#include "engine/pool.h"

/* Makes the order to fill a file of which no copy is being made. The caller queues the order.
 * Returns NULL if the grant does not allow the fill. The caller holds the writer's lock and the
 * pool's. */
struct job *monarch_place_granted(struct pool *p, struct monarch_catalog *c, uint64_t id);
/* Orders fills for the demands that the thread has met without an order (me->unordered), as far as
 * the grant allows; the rest is left to Python. The caller holds no lock. */
void monarch_order_demanded(struct pool *p, struct worker *me);
/* Returns whether the end of this order must wake the daemon's loop. It must if a fill was not
 * published, because Python must see why; or if a reader still waits for a file that was left to
 * the loop, which may have room for it now. Returns 0 if the loop was already woken since its last
 * rest. The caller holds the pool's lock. */
int monarch_leaves_again(struct pool *p, const struct job *job);
/* Wakes the daemon's loop from its rest or sleep. */
void monarch_end_rest(struct pool *p);
