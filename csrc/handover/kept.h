/* The table of descriptors that programs have handed over. Each descriptor waits for an order to
 * fill its file. */
#pragma once

#include "handover/handed.h"

/* Makes the table, and starts the thread that checks its descriptors. Returns NULL if one of the
 * two fails. */
struct kept_table *monarch_new_kept(struct pool *p);
/* Puts a descriptor into the table and returns 1. Returns 0 if the table is full. is_asked: whether
 * the daemon was already asked to order the fill. */
int monarch_keep(struct kept_table *t, struct handed *h, int is_asked);

/* Checks all descriptors in the table. Orders fills of their files, if the grant allows them.
 * Removes and closes descriptors that have waited too long for an order. */
void monarch_look_at_kept(struct pool *p);
/* Call this for each new order. Sets job->is_kept if the table contains a descriptor of the order's
 * file. */
void monarch_note_kept(struct pool *p, struct job *job);
/* Call this before an order with is_kept begins. Passes the kept descriptor to the order. Does not
 * do so if the program has asked the daemon to close it. */
void monarch_take_kept(struct pool *p, struct job *job);

/* monarch_end_kept wakes the table's thread, which ends if the engine is stopping.
 * monarch_join_kept waits for its end until the time `until`, and returns whether it has ended. */
void monarch_end_kept(struct kept_table *t);
int monarch_join_kept(struct kept_table *t, const struct timespec *until);
/* Closes the descriptors in the table, and frees the table. */
void monarch_free_kept(struct kept_table *t);
