/* The copying threads. */
#ifndef MONARCH_WORK_H
#define MONARCH_WORK_H

#include "engine/schedule.h"

/* Those that the engine begins with; the others of the sources' are started when all of a kind have
 * work. Returns 0 when there is none. They end when the engine is stopping and they are rung. */
int monarch_start_threads(struct pool *p, int peer_threads);
/* As struct monarch_engine has it. Not within what is done here itself: a thread waits for two
 * things at most. */
void monarch_serve_readers(struct monarch_engine *e, char *buffer);
/* Does an order to fill that is in no queue and has a slot, by a thread that does nothing else. */
void monarch_do_handed(struct worker *w, struct job *job);
/* MONARCH_CHUNK bytes for a thread, of which it has what it has touched; NULL without memory. */
char *monarch_map_buffer(void);
void monarch_unmap_buffer(char *buffer);

#endif
