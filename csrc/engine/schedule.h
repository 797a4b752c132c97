/* What the copying threads do next. All of it is under the pool's lock. */
#ifndef MONARCH_SCHEDULE_H
#define MONARCH_SCHEDULE_H

#include "engine/pool.h"

/* --- orders by entry --- */

/* Whether a reader may wait for the order: those that have not begun can be found by entry. */
int monarch_is_awaited(const struct job *job);
void monarch_remember(struct pool *p, struct job *job);
/* The order to fill this entry that no thread has begun; NULL for none. */
struct job *monarch_queued_fill(const struct pool *p, uint64_t id);
/* Whether there is one to fill or to check it. */
int monarch_has_order(const struct pool *p, uint64_t id);
/* Removes an order from its queue, and from those that are found by entry. */
void monarch_unqueue(struct pool *p, struct job *job);

/* Readers no longer need the map of its fill; an order without a slot has none to give back. */
void monarch_free_slot(struct pool *p, struct job *job);

/* --- fills under way --- */

int monarch_is_claimed(const struct fill *f, uint64_t unit);
void monarch_claim(struct fill *f, uint64_t unit);
/* NULL for none. */
struct fill *monarch_fill_of(const struct pool *p, uint64_t id);
void monarch_add_fill(struct pool *p, struct fill *f);
void monarch_remove_fill(struct pool *p, const struct fill *f);

/* --- what is next --- */

struct work {
    struct job *job;   /* to begin or to do, or */
    struct fill *fill; /* a unit or a block of it */
    uint64_t unit, block;
    int is_unit;
    int leaves_nobody; /* no thread of the caller's kind is without work now */
};

enum monarch_way monarch_way_of(const struct job *job);
/* What it may do when it has nothing to do, as bits. */
uint32_t monarch_roles_of(const struct worker *me);
/* Whether there is any of that, and then what is first. Who does more than demands has ended what
 * it did before. */
int monarch_find_work(struct pool *p, struct worker *me, uint32_t roles, struct work *w);
/* Who could do some of what there is, as bits of roles; 0: there is nothing. Of what lies ahead of
 * readers it may say too much. */
uint32_t monarch_whom_it_needs(struct pool *p, enum monarch_way way);

#endif
