/* The copying threads. */
#ifndef MONARCH_WORK_H
#define MONARCH_WORK_H

#include "schedule.h"

/* Returns how many could be started. They end when the engine is stopping and they are rung. */
int monarch_start_threads(struct pool *p, struct worker *workers, enum monarch_way way,
                          int threads);
/* As struct monarch_engine has it. Not within what is done here itself: a thread waits for two
 * things at most. */
void monarch_serve_readers(struct monarch_engine *e, char *buffer);

#endif
