/* The queues of orders, and the tables that find queued orders and unfinished fills by catalog
 * entry. The caller holds the pool's lock. A queue that no other thread can see needs no lock. */
#pragma once

#include "engine/pool.h"

/* --- queues ----------------------------------------------------------------------------------- */

void monarch_push(struct queue *q, struct job *job);
void monarch_push_first(struct queue *q, struct job *job);
/* Removes the first order and returns it; returns NULL if the queue is empty. */
struct job *monarch_pop(struct queue *q);
/* Removes the order from its queue, whatever the order's position in the queue. */
void monarch_take_out(struct job *job);

/* --- orders by entry -------------------------------------------------------------------------- */

enum monarch_origin monarch_origin_of(const struct job *job);
/* Returns whether the order is a FILL or a CHECK. Readers may wait for these two kinds. Only orders
 * of these kinds are in the table of queued orders. monarch_remember adds an order to the table,
 * and monarch_unqueue removes the order. */
int monarch_is_awaited(const struct job *job);
void monarch_remember(struct pool *p, struct job *job);
/* Returns the queued order to fill this entry's file, or NULL if there is none. */
struct job *monarch_queued_fill(const struct pool *p, uint64_t id);
/* Returns the queued FILL or CHECK of this entry's file, or NULL. If several are queued, returns
 * the one that monarch_remember added last. */
struct job *monarch_order_of(const struct pool *p, uint64_t id);
/* Returns whether a FILL or a CHECK of this entry's file is queued. */
int monarch_has_order(const struct pool *p, uint64_t id);
/* Removes an order from its queue, and from the table of queued orders. */
void monarch_unqueue(struct pool *p, struct job *job);

/* Frees the order's slot in the fills segment, if the order has one. Readers see in the slot's map
 * which units of the copy are filled. So call this only when no reader needs the map any more. */
void monarch_free_slot(struct pool *p, struct job *job);

/* --- unfinished fills ------------------------------------------------------------------------- */

int monarch_is_claimed(const struct fill *f, uint64_t unit);
void monarch_claim(struct fill *f, uint64_t unit);
/* Returns the entry's unfinished fill, or NULL. */
struct fill *monarch_fill_of(const struct pool *p, uint64_t id);
void monarch_add_fill(struct pool *p, struct fill *f);
void monarch_remove_fill(struct pool *p, const struct fill *f);
/* Moves the fill `f` to the end of the list of fills. Moves the fill `first`, unless it is `f`
 * itself, to the position at which `f` was. */
void monarch_move_last(struct pool *p, struct fill *f, struct fill *first);
