/* The scheduler of the copying threads. The caller of each function holds the pool's lock. */
#pragma once

#include "engine/pool.h"

struct work {
    struct job *job;   /* the order to begin, or NULL */
    struct fill *fill; /* if job is NULL: the fill of which one unit or one block must be moved */
    uint64_t unit, block;
    int is_unit;       /* 1: a unit must be moved; 0: a block */
    int leaves_nobody; /* with this work, all threads with the caller's roles are busy */
};

/* Returns the roles, as bits, of a thread that has finished its work and looks for more. */
uint32_t monarch_roles_of(const struct worker *me);
/* Finds the most urgent work within `roles`. Returns 0 if there is none. A thread that interrupts
 * other work passes MONARCH_DOES_DEMANDS alone; any other roles say that the thread has finished
 * its work. */
int monarch_find_work(struct pool *p, struct worker *me, uint32_t roles, struct work *w);
/* Returns the roles, as bits, of the threads of this way that could do some of the waiting work; 0
 * if no work waits. The result may be nonzero although no work is left: units ahead of readers
 * count even if all units of the fill are already claimed. */
uint32_t monarch_whom_it_needs(struct pool *p, enum monarch_way way);
