/* Lets the copying threads order fills themselves, in space that the daemon has granted to them. So
 * a fill that a reader or a peer needs can begin before the next iteration of the daemon's loop. */
#pragma once

#include "engine/pool.h"

/* Orders fills for the demands in me->unordered. The thread `me` has noted these demands because
 * their files have no order. Leaves the fills that the grant does not allow to Python. Wakes
 * threads for the new orders. The caller holds no lock. looks: 1 if the caller looks for work next;
 * then no other thread of the caller's origin (the sources or the peers) is woken. */
void monarch_order_demanded(struct pool *p, struct worker *me, int looks);
/* Call this when an order ends without having published a copy. Returns whether the caller must
 * wake the daemon's loop. After a fill, the loop must find out why the copy was not published. A
 * PAGE_IN never needs the loop. Any other order, such as a DROP, may have freed space. Then the
 * loop is woken only if a reader still waits for a file whose fill the threads have not ordered.
 * Returns 0 if a thread has already woken the loop since the loop's last sleep ended. The caller
 * holds the pool's lock. */
int monarch_leaves_again(struct pool *p, const struct job *job);
/* Wakes the daemon's loop, whether it waits in monarch_engine_rest or for the doorbell. */
void monarch_end_rest(struct pool *p);
