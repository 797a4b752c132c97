/* Decides which copying threads are woken, and when a copying thread sleeps. */
#pragma once

#include "engine/schedule.h"

/* Wakes one thread that can do new work. who: the roles of the threads that can do the work, as
 * returned by monarch_whom_it_needs. */
void monarch_ring_one(struct pool *p, enum monarch_way way, uint32_t who);
void monarch_ring_all(struct pool *p, enum monarch_way way);
/* Releases the pool's lock after a change that may have added work of any kind, and wakes threads
 * for it. */
void monarch_unlock_and_ring(struct pool *p);
/* Sleeps until the bell for the thread's `enum monarch_way` rings, or until the time `until_ns`
 * [CLOCK_MONOTONIC; 0: no limit]. Does not sleep if the bell's word differs from `seen`. Returns 0
 * if `until_ns` has passed, else 1. */
int monarch_sleep(const struct worker *me, uint32_t seen, uint32_t roles, uint64_t until_ns);
