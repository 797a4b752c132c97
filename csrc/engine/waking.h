/* Which of the copying threads are woken, and when they sleep. */
#ifndef MONARCH_WAKING_H
#define MONARCH_WAKING_H

#include "engine/schedule.h"

/* After work was made: one thread that can do it, of `who` as monarch_whom_it_needs says it. */
void monarch_ring_one(struct pool *p, enum monarch_way way, uint32_t who);
void monarch_ring_all(struct pool *p, enum monarch_way way);
/* After a change under the pool's lock that may have made work of any kind. */
void monarch_unlock_and_ring(struct pool *p);
/* Unless its way was rung since the bell said `seen`; no longer than `until_ns` [CLOCK_MONOTONIC],
 * if that is not 0. Returns 0 if that time has come. */
int monarch_sleep(const struct worker *me, uint32_t seen, uint32_t roles, uint64_t until_ns);

#endif
