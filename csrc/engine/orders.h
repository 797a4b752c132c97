/* Making orders and taking them into the queues. */
#pragma once

#include "engine/schedule.h"

/* A new order for an entry of `c` that no other thread sees yet; NULL without memory. The
 * parameters are those of monarch_engine_submit. The caller holds the writer's lock. */
struct job *monarch_new_order(struct pool *p, const struct monarch_catalog *c, int kind,
                              uint64_t id, uint32_t tier, uint64_t copy, uint64_t sum,
                              const int32_t *peers);
/* Puts the order into one of the queues `to`, which are indexed by the order's way. The caller
 * holds the pool's lock, and rings afterwards. */
void monarch_enqueue(struct pool *p, struct queue to[], int in_use, struct job *job);
/* Adds the order to the counts of orders without a result (1), or takes it off them (-1). The
 * caller holds the pool's lock. */
void monarch_count(struct pool *p, const struct job *job, int more);
