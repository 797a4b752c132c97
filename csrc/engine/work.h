/* The copying threads. */
#pragma once

#include "engine/schedule.h"

/* Starts the threads that the engine begins with. More threads for the sources are started later,
 * when all running threads with the role READS_AHEAD have work, or when all running threads without
 * that role have work. Returns 0 if no thread for the sources could be started. A thread ends when
 * the engine is stopping and the bell of its origin is rung. */
int monarch_start_threads(struct pool *p, int peer_threads);
/* Implements monarch_engine.serve_readers. Does nothing if this thread is already inside a call of
 * this function. So waits for peers are nested at most two levels deep: a thread that waits for a
 * peer may begin a fill that waits for a peer too, but begins no third fill during this second
 * wait. */
void monarch_serve_readers(struct monarch_engine *e, char *buffer);
/* Does a FILL that is in no queue and has a slot. The calling thread serves no other reader
 * meanwhile. */
void monarch_do_handed(struct worker *w, struct job *job);
/* Maps a thread's buffer of MONARCH_CHUNK bytes. Only pages that are touched take memory. Returns
 * NULL if memory is exhausted. */
char *monarch_map_buffer(void);
void monarch_unmap_buffer(char *buffer);
