/* Fills that the copying threads order themselves, in room that policy has granted. They do so
 * between two iterations of the daemon's loop, for files for which a reader or a peer waits. */
#pragma once

#include "engine/pool.h"

/* Makes the order to fill a file that has no copy and no fill. The caller puts the order into a
 * queue, and holds the writer's lock and the pool's. Returns NULL if the grant does not allow the
 * fill. */
struct job *monarch_place_granted(struct pool *p, struct monarch_catalog *c, uint64_t id);
/* Notes which peer gave the whole of a file. Fills of that file count in the peer's flow from then
 * on: the peer need not wait for the source. The caller holds the pool's lock. */
void monarch_note_giver(struct pool *p, const struct monarch_result *fill);
/* Goes through the demands that the thread has noted because their files have no order
 * (me->unordered). Orders fills of these files as far as the grant allows, and leaves all others to
 * Python. The caller holds no lock. */
void monarch_order_demanded(struct pool *p, struct worker *me);
/* Returns whether the end of this order must wake the daemon's loop. There are two reasons. After a
 * fill whose copy was not published, Python must find out why. After another order, such as a DROP,
 * there may be room for a file that was left to the loop and for which a reader still waits.
 * Returns 0 if the loop was already woken since its last rest. The caller holds the pool's lock. */
int monarch_leaves_again(struct pool *p, const struct job *job);
/* Wakes the daemon's loop, whether it waits in monarch_engine_rest or for the doorbell. */
void monarch_end_rest(struct pool *p);
