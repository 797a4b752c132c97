/* The scheduler of the copying threads. The caller of each function holds the pool's lock. */
#pragma once

#include "engine/pool.h"

/* --- orders by entry -------------------------------------------------------------------------- */

/* Returns whether readers may wait for an order of this kind. If so, the order can be found by its
 * entry from the call of monarch_remember until the order begins. */
int monarch_is_awaited(const struct job *job);
void monarch_remember(struct pool *p, struct job *job);
/* Returns the queued order to fill this entry, or NULL if there is none. */
struct job *monarch_queued_fill(const struct pool *p, uint64_t id);
/* Returns whether an order to fill or to check this entry is queued. */
int monarch_has_order(const struct pool *p, uint64_t id);
/* Removes an order from its queue and from the table of orders by entry. */
void monarch_unqueue(struct pool *p, struct job *job);

/* Frees the order's slot in the fills segment, if it has one. Call this once readers no longer need
 * the map of the fill. */
void monarch_free_slot(struct pool *p, struct job *job);

/* --- unfinished fills ------------------------------------------------------------------------- */

int monarch_is_claimed(const struct fill *f, uint64_t unit);
void monarch_claim(struct fill *f, uint64_t unit);
/* Returns the entry's unfinished fill, or NULL. */
struct fill *monarch_fill_of(const struct pool *p, uint64_t id);
void monarch_add_fill(struct pool *p, struct fill *f);
void monarch_remove_fill(struct pool *p, const struct fill *f);

/* --- the next work ---------------------------------------------------------------------------- */

struct work {
    struct job *job;   /* the order to begin, or NULL */
    struct fill *fill; /* if job is NULL: the fill of which one unit or one block must be moved */
    uint64_t unit, block;
    int is_unit;       /* 1: a unit must be moved; 0: a block */
    int leaves_nobody; /* with this work, all threads with the caller's roles are busy */
};

enum monarch_way monarch_way_of(const struct job *job);
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
