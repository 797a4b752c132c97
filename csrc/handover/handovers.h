/* Fills from the descriptors that readers hand over (csrc/preload/fill/handover.h). */
#ifndef MONARCH_HANDOVERS_H
#define MONARCH_HANDOVERS_H

#include "engine/schedule.h"

/* Before the engine's threads are joined: nothing is taken from the socket any more. */
void monarch_end_handovers(struct pool *p);
/* Returns how many threads have not ended by then. */
int monarch_join_handovers(struct pool *p, const struct timespec *until);

#endif
