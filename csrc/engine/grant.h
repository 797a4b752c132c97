/* The copying threads themselves order fills, in room that policy has granted. So if a reader or a
 * peer waits for a file, the fill can be ordered before the next iteration of the daemon's loop. */
#pragma once

#include "engine/pool.h"

/* Goes through the demands that the thread has noted because their files have no order
 * (me->unordered). Orders fills of these files as far as the grant allows, and leaves all other
 * fills to Python. Wakes threads for the orders. The caller holds no lock.
 * looks: 1 if the caller looks for work next. Then no other thread of its origin is woken. */
void monarch_order_demanded(struct pool *p, struct worker *me, int looks);
/* Call this at the end of an order that has published no copy. Returns whether the caller must wake
 * the daemon's loop. After a fill, the loop is needed to find out why the copy was not published.
 * After an order such as a DROP, there may be room again; then the loop is needed only if a reader
 * still waits for a file whose fill the threads have not ordered. Returns 0 if the loop was already
 * woken since its last rest. The caller holds the pool's lock. */
int monarch_leaves_again(struct pool *p, const struct job *job);
/* Wakes the daemon's loop, whether it waits in monarch_engine_rest or for the doorbell. */
void monarch_end_rest(struct pool *p);
