/* The table of descriptors that programs have handed over. Each descriptor waits for an order to
 * fill its file. */
#pragma once

#include "handover/handed.h"

/* Makes the table, and starts the thread that looks after the table. Returns NULL if either
 * fails. */
struct kept_table *monarch_new_kept(struct pool *p);
/* Puts a descriptor into the table. is_asked: policy was asked to order the fill. If there is no
 * room, does nothing and returns 0. Otherwise returns 1. */
int monarch_keep(struct kept_table *t, struct handed *h, int is_asked);

/* Orders fills for the descriptors in the table as far as a grant allows. Closes the descriptors
 * that have waited long enough without getting an order. */
void monarch_look_at_kept(struct pool *p);
/* Call this for each new order. Sets job->is_kept if a descriptor waits for the order. */
void monarch_note_kept(struct pool *p, struct job *job);
/* Call this before the order begins. Gives the order the descriptor that waits for it, unless the
 * program has asked the daemon to close that descriptor. */
void monarch_take_kept(struct pool *p, struct job *job);

/* monarch_end_kept wakes the table's thread, which then sees that the engine is stopping, and ends.
 * monarch_join_kept waits for the thread to end, but no longer than until the time `until`. It
 * returns whether the thread has ended. */
void monarch_end_kept(struct kept_table *t);
int monarch_join_kept(struct kept_table *t, const struct timespec *until);
/* Closes the descriptors in the table, and frees the table. */
void monarch_free_kept(struct kept_table *t);
