/* Lets the copying threads order fills themselves, in space that the daemon has granted to them. A
 * fill that a reader or a peer needs then begins without waiting for the daemon's loop. */
#pragma once

#include "engine/pool.h"

/* Orders fills for the demands in me->unordered. If the grant refuses a fill, leaves this fill to
 * Python, and wakes the daemon's loop. Wakes copying threads for the new orders. looks: 1 if the
 * caller looks for work next. Then no other thread of the caller's origin (the sources or the
 * peers) is woken. The caller holds no lock. */
void monarch_order_demanded(struct pool *p, struct worker *me, int looks);
/* Call this when an order ends without having published a copy. Returns whether the caller must
 * wake the daemon's loop. After a fill, the loop must find out why no copy was published. After a
 * PAGE_IN, the loop is not needed. Any other order, such as a DROP, may have freed space. Then the
 * loop is needed only if a reader still waits for a file whose fill the threads could not order.
 * Returns 0 if grant.leaves is already set, because the loop then wakes anyway. The caller holds
 * the pool's lock. */
int monarch_leaves_again(struct pool *p, const struct job *job);
/* Wakes the daemon's loop, whether it waits in monarch_engine_rest or for the doorbell. */
void monarch_end_rest(struct pool *p);
