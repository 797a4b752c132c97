/* The scheduler of the copying threads. The caller of each function holds the pool's lock, except
 * for monarch_ring_one. */
#pragma once

#include "engine/pool.h"

struct work {
    struct job *job; /* the order to begin, or NULL */
    /* if job is NULL: the caller must copy one unit or one block of this fill */
    struct fill *fill;
    uint64_t unit, block;
    int is_unit; /* 1: the caller must copy `unit`; 0: `block` */
    /* 1: while the caller does this work, no thread with the caller's roles is idle, so the caller
     * must start more threads. Always 0 for threads that copy from peers. */
    int leaves_nobody;
};

/* Returns the roles (bits) of a thread when it looks for work and has no other work. */
uint32_t monarch_roles_of(const struct worker *me);
/* Finds the most urgent work of the kinds in `roles`. Returns 0 if there is none. A thread that
 * interrupts its work passes MONARCH_DOES_DEMANDS alone. Any other `roles` mean that the thread has
 * finished its work: the call then counts the thread as idle before it searches. */
int monarch_find_work(struct pool *p, struct worker *me, uint32_t roles, struct work *w);
/* Returns the roles (bits) of the threads that could do the waiting work of this origin. Returns 0
 * if no work waits. The result may be nonzero although no work waits: a fill for which a reader has
 * waited counts as work until a search finds all its units claimed. */
uint32_t monarch_whom_it_needs(struct pool *p, enum monarch_origin origin);
/* Wakes one thread that can do new work. who: the roles that monarch_whom_it_needs has returned; 0:
 * wakes none. The caller need not hold the pool's lock. */
void monarch_ring_one(struct pool *p, enum monarch_origin origin, uint32_t who);
/* Releases the pool's lock after a change that may have added work of any kind. Wakes threads for
 * the new work. */
void monarch_unlock_and_ring(struct pool *p);
/* Like monarch_unlock_and_ring, but for the thread `me`, which looks for work next. Wakes no other
 * thread of the same origin, because `me` takes one piece of the work itself. */
void monarch_unlock_and_look(struct pool *p, const struct worker *me);
