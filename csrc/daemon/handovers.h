/* Fills from the descriptors that readers hand over (csrc/preload/handover.h). */
#ifndef MONARCH_HANDOVERS_H
#define MONARCH_HANDOVERS_H

#include "schedule.h"

/* A descriptor waits for the order, if its file was handed over before the catalog knew it: */
void monarch_keep_unmet(struct pool *p, struct job *job);
/* and becomes the order's, if that has none and the program has not asked for it. */
void monarch_take_unmet(struct pool *p, struct job *job);
/* Before the engine's threads are joined: nothing is taken from the socket any more. */
void monarch_end_handovers(struct pool *p);
/* Returns how many threads have not ended by then. */
int monarch_join_handovers(struct pool *p, const struct timespec *until);

#endif
