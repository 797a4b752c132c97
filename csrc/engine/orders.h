/* Makes orders for the copying threads from catalog entries, queues them and withdraws them. The
 * daemon submits orders. A copying thread may also order fills itself, in space that the daemon has
 * granted. */
#pragma once

#include "engine/entries.h"

/* Makes an order for an entry of `c`, with the parameters of monarch_engine_submit. Does not queue
 * the order. Returns NULL if memory is exhausted. The caller holds the writer's lock. */
struct job *monarch_new_order(struct pool *p, const struct monarch_catalog *c, int kind,
                              uint64_t id, uint32_t tier, uint64_t copy, uint64_t sum,
                              const int32_t *peers);
/* Makes an order to fill a file that has no copy and no fill. The caller must queue the order.
 * Returns NULL if the grant does not allow the fill. The caller holds the writer's lock and the
 * pool's lock. */
struct job *monarch_place_granted(struct pool *p, struct monarch_catalog *c, uint64_t id);
/* Notes that a peer has the whole file, if this peer alone has sent the whole file in this fill. A
 * later fill of the file from this peer does not wait for the source. So only such a later fill
 * shows the peer's own speed, and is measured (copy/flow.h). The caller holds the pool's lock. */
void monarch_note_giver(struct pool *p, const struct monarch_result *fill);
/* Puts the order into the queue to[i], where i is the origin of the order's bytes (enum
 * monarch_origin). in_use: whether a program uses the file. The caller holds the pool's lock, and
 * must then wake threads (schedule.h). */
void monarch_enqueue(struct pool *p, struct queue to[], int in_use, struct job *job);
/* Changes the counts of orders whose results Python has not taken. more: 1 for a new order; -1 when
 * Python takes its result. The caller holds the pool's lock. */
void monarch_count(struct pool *p, const struct job *job, int more);
