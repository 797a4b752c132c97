/* Makes orders, and puts them into the queues. */
#pragma once

#include "engine/schedule.h"

/* Makes an order for an entry of `c`. No other thread sees the order yet. Returns NULL if memory is
 * exhausted. The parameters are those of monarch_engine_submit. The caller holds the writer's
 * lock. */
struct job *monarch_new_order(struct pool *p, const struct monarch_catalog *c, int kind,
                              uint64_t id, uint32_t tier, uint64_t copy, uint64_t sum,
                              const int32_t *peers);
/* Puts the order into one of the queues `to`, which are indexed by way. The caller holds the pool's
 * lock, and wakes threads afterwards (waking.h). */
void monarch_enqueue(struct pool *p, struct queue to[], int in_use, struct job *job);
/* Adds the order to the counts of orders whose results Python has not taken (more = 1), or removes
 * it from these counts (more = -1). The caller holds the pool's lock. */
void monarch_count(struct pool *p, const struct job *job, int more);
