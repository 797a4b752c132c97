/* Making orders and taking them into the queues. */
#ifndef MONARCH_ORDERS_H
#define MONARCH_ORDERS_H

#include "engine/schedule.h"

/* An order for an entry of `c`, which nobody else sees yet; NULL without memory. The rest is as
 * monarch_engine_submit has it. The caller has the writer's lock. */
struct job *monarch_new_order(struct pool *p, const struct monarch_catalog *c, int kind,
                              uint64_t id, uint32_t tier, uint64_t copy, uint64_t sum,
                              const int32_t *peers);
/* Into one of the queues `to`, which are by the way of the order. The caller has the pool's lock,
 * and rings afterwards. */
void monarch_enqueue(struct pool *p, struct queue to[], int in_use, struct job *job);
/* The order comes to those that have no result yet (1), or goes from them (-1). The caller has the
 * pool's lock. */
void monarch_count(struct pool *p, const struct job *job, int more);

#endif
