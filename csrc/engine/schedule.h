/* The scheduler of the copying threads. The caller of each function holds the pool's lock. */
#pragma once

#include "engine/pool.h"

/* --- orders by entry --- */

/* Whether a reader may wait for the order. An order that a reader may wait for can be found by
 * entry until it begins. */
int monarch_is_awaited(const struct job *job);
void monarch_remember(struct pool *p, struct job *job);
/* The order to fill this entry that no thread has begun; NULL for none. */
struct job *monarch_queued_fill(const struct pool *p, uint64_t id);
/* Whether an order to fill or to check this entry is queued. */
int monarch_has_order(const struct pool *p, uint64_t id);
/* Removes an order from its queue and from the orders that are found by entry. */
void monarch_unqueue(struct pool *p, struct job *job);

/* Gives back the order's slot once readers no longer need the map of its fill; does nothing for an
 * order without a slot. */
void monarch_free_slot(struct pool *p, struct job *job);

/* --- fills under way --- */

int monarch_is_claimed(const struct fill *f, uint64_t unit);
void monarch_claim(struct fill *f, uint64_t unit);
/* The entry's fill under way; NULL for none. */
struct fill *monarch_fill_of(const struct pool *p, uint64_t id);
void monarch_add_fill(struct pool *p, struct fill *f);
void monarch_remove_fill(struct pool *p, const struct fill *f);

/* --- what is next --- */

struct work {
    struct job *job;   /* the order to begin or to do, or NULL */
    struct fill *fill; /* else the fill of which to move a unit or a block */
    uint64_t unit, block;
    int is_unit;
    int leaves_nobody; /* no thread of the caller's kind is without work now */
};

enum monarch_way monarch_way_of(const struct job *job);
/* The roles, as bits, of a thread that has ended its work. */
uint32_t monarch_roles_of(const struct worker *me);
/* Finds the first work within `roles`; returns 0 if there is none. With more roles than
 * MONARCH_DOES_DEMANDS the thread has ended its previous work. */
int monarch_find_work(struct pool *p, struct worker *me, uint32_t roles, struct work *w);
/* The roles, as bits, of the threads that could do some of the work there is; 0 if there is none.
 * It may overstate the work that lies ahead of readers. */
uint32_t monarch_whom_it_needs(struct pool *p, enum monarch_way way);
