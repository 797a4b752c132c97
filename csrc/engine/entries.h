/* The queues of orders, and the tables that find queued orders and unfinished fills by catalog
 * entry. The caller of each function holds the pool's lock, unless no other thread can see the
 * queue yet. */
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
/* Returns whether the order is a FILL or a CHECK. Readers may wait for orders of these two kinds,
 * so the table of queued orders contains only them. monarch_remember adds an order to this table,
 * and monarch_unqueue removes it. */
int monarch_is_awaited(const struct job *job);
void monarch_remember(struct pool *p, struct job *job);
/* Returns the queued order to fill this entry, or NULL if there is none. */
struct job *monarch_queued_fill(const struct pool *p, uint64_t id);
/* Returns the queued order to fill or to check this entry, or NULL if there is none. If there are
 * several, returns the one that monarch_remember added last. */
struct job *monarch_order_of(const struct pool *p, uint64_t id);
/* Returns whether an order to fill or to check this entry is queued. */
int monarch_has_order(const struct pool *p, uint64_t id);
/* Removes an order from its queue, and from the table of queued orders. */
void monarch_unqueue(struct pool *p, struct job *job);

/* Frees the order's slot in the fills segment, if it has one. The slot's map shows readers which
 * units of the copy are filled. So call this when readers no longer need the map. */
void monarch_free_slot(struct pool *p, struct job *job);

/* --- unfinished fills ------------------------------------------------------------------------- */

int monarch_is_claimed(const struct fill *f, uint64_t unit);
void monarch_claim(struct fill *f, uint64_t unit);
/* Returns the entry's unfinished fill, or NULL. */
struct fill *monarch_fill_of(const struct pool *p, uint64_t id);
void monarch_add_fill(struct pool *p, struct fill *f);
void monarch_remove_fill(struct pool *p, const struct fill *f);
/* Moves the fill `f` to the end of the list of fills. If `first` is not `f`, also moves `first` to
 * the former position of `f`. */
void monarch_move_last(struct pool *p, struct fill *f, struct fill *first);
