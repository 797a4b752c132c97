/* Fills that the copying threads order themselves, in room that policy has granted. They do so
 * between two iterations of the daemon's loop, for files for which a reader or a peer waits. */
#pragma once

#include "engine/pool.h"

/* Goes through the demands that the thread has noted because their files have no order
 * (me->unordered). Orders fills of these files as far as the grant allows, and leaves all others to
 * Python. The caller holds no lock. */
void monarch_order_demanded(struct pool *p, struct worker *me);
/* Returns whether the end of this order, which has published no copy, must wake the daemon's loop.
 * There are two reasons. After a fill, Python must find out why the copy was not published. After
 * another order, such as a DROP, there may be room for a file that was left to the loop and for
 * which a reader still waits. Returns 0 if the loop was already woken since its last rest. The
 * caller holds the pool's lock. */
int monarch_leaves_again(struct pool *p, const struct job *job);
/* Wakes the daemon's loop, whether it waits in monarch_engine_rest or for the doorbell. */
void monarch_end_rest(struct pool *p);
