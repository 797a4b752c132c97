/* Makes orders from the catalog, queues them and withdraws them. Each order is either one that
 * policy has submitted, or a fill in room that policy has granted. */
#pragma once

#include "engine/entries.h"

/* Makes an order for an entry of `c`. No other thread sees the order yet. Returns NULL if memory is
 * exhausted. The parameters are those of monarch_engine_submit. The caller holds the writer's
 * lock. */
struct job *monarch_new_order(struct pool *p, const struct monarch_catalog *c, int kind,
                              uint64_t id, uint32_t tier, uint64_t copy, uint64_t sum,
                              const int32_t *peers);
/* Makes the order to fill a file that has no copy and no fill. The caller holds the writer's lock
 * and the pool's lock, and puts the order into a queue. Returns NULL if the grant does not allow
 * the fill. */
struct job *monarch_place_granted(struct pool *p, struct monarch_catalog *c, uint64_t id);
/* If a single peer has sent the whole file in this fill, notes that the peer has the file. In later
 * fills of the file, this peer need not wait for the source, so the speed of these fills counts in
 * the peer's measured flow (copy/flow.h). The caller holds the pool's lock. */
void monarch_note_giver(struct pool *p, const struct monarch_result *fill);
/* Puts the order into one of the queues `to`; to[i] is the queue for orders of the origin i (enum
 * monarch_origin). The caller holds the pool's lock, and wakes threads afterwards (schedule.h). */
void monarch_enqueue(struct pool *p, struct queue to[], int in_use, struct job *job);
/* Adds the order to the counts of orders whose results Python has not taken (more = 1), or removes
 * it from these counts (more = -1). The caller holds the pool's lock. */
void monarch_count(struct pool *p, const struct job *job, int more);
