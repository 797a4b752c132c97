/* Which of the copying threads are woken, and when they sleep. */
#pragma once

#include "engine/schedule.h"

/* Wakes one thread that can do work that was just made. who: the roles that monarch_whom_it_needs
 * has returned. */
void monarch_ring_one(struct pool *p, enum monarch_way way, uint32_t who);
void monarch_ring_all(struct pool *p, enum monarch_way way);
/* Releases the pool's lock after a change that may have made work of any kind, and wakes threads
 * for it. */
void monarch_unlock_and_ring(struct pool *p);
/* Sleeps until the bell of the thread's way is rung, and not at all if the bell's word is no longer
 * `seen`. The sleep ends at `until_ns` [CLOCK_MONOTONIC] at the latest; 0: no limit. Returns 0 if
 * that time has come, else 1. */
int monarch_sleep(const struct worker *me, uint32_t seen, uint32_t roles, uint64_t until_ns);
