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
    /* 1: now that the caller takes this work, no thread with the caller's roles is idle, so the
     * caller must start more threads; always 0 for threads that copy from peers */
    int leaves_nobody;
};

/* Returns the roles (bits) of a thread when it looks for work and has no other work. */
uint32_t monarch_roles_of(const struct worker *me);
/* Finds the most urgent work of the kinds in `roles`. Returns 0 if there is none. A thread that
 * interrupts its current work passes MONARCH_DOES_DEMANDS alone. With any other roles, the call
 * also notes that the thread has finished its current work. */
int monarch_find_work(struct pool *p, struct worker *me, uint32_t roles, struct work *w);
/* Returns the roles (bits) of the threads that could do the waiting work of this origin; 0 if no
 * work waits. The result may be nonzero although no work waits: a fill for which a reader has
 * waited is treated as work until a search finds that all its units are claimed. */
uint32_t monarch_whom_it_needs(struct pool *p, enum monarch_origin origin);
/* Wakes one thread that can do new work. who: the roles of the threads that can do the work, as
 * returned by monarch_whom_it_needs. */
void monarch_ring_one(struct pool *p, enum monarch_origin origin, uint32_t who);
/* Releases the pool's lock after a change that may have added work of any kind. Wakes threads for
 * the new work. */
void monarch_unlock_and_ring(struct pool *p);
/* Like monarch_unlock_and_ring, but called by the thread `me`, which looks for work next. No other
 * thread of the same origin is woken, because `me` finds the work of this origin anyway. */
void monarch_unlock_and_look(struct pool *p, const struct worker *me);
