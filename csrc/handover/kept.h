/* Descriptors of readers that wait for the orders of their files. */
#ifndef MONARCH_KEPT_H
#define MONARCH_KEPT_H

#include "handover/handed.h"

/* The table, and the thread that looks after it; NULL where either cannot be had. */
struct kept_table *monarch_new_kept(struct pool *p);
/* is_asked: policy has been asked for the order. 0: there is no room, and nothing is done. */
int monarch_keep(struct kept_table *t, struct handed *h, int is_asked);

/* Orders what waits for it, as far as there is a grant, and closes what waits no longer. */
void monarch_look_at_kept(struct pool *p);
/* An order is made: a descriptor may wait for it (job->is_kept). */
void monarch_note_kept(struct pool *p, struct job *job);
/* The order begins: the descriptor is its own, unless the program has asked for it. */
void monarch_take_kept(struct pool *p, struct job *job);

/* Its thread does nothing more; whether it has ended by then. */
void monarch_end_kept(struct kept_table *t);
int monarch_join_kept(struct kept_table *t, const struct timespec *until);
/* Closes what is left. */
void monarch_free_kept(struct kept_table *t);

#endif
