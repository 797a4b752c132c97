/* The copying threads. */
#pragma once

#include "engine/schedule.h"

/* Starts the threads that the engine begins with. Returns 0 if no thread for the sources could be
 * started. More threads for the sources are started later, up to `most_threads`. This happens when
 * a thread takes work and then no thread with the role READS_AHEAD is idle, or no thread without
 * that role. A thread ends when the engine is stopping and the bell of its origin is rung. */
int monarch_start_threads(struct pool *p, int peer_threads);
/* Serves waiting readers while this thread's fill waits for a peer (monarch_engine.serve_readers).
 * For a reader, the thread may begin a second fill, which may wait for a peer too. A call during
 * this second wait does nothing, so the thread begins no third fill. */
void monarch_serve_readers(struct monarch_engine *e, char *buffer);
/* Carries out the fill `job`. This order comes with a reader's descriptor. It is in no queue, and
 * already has a slot. Until the fill ends, the calling thread serves no other reader. */
void monarch_do_handed(struct worker *w, struct job *job);
/* Maps a thread's buffer of MONARCH_CHUNK bytes. Only pages that are touched take memory. Returns
 * NULL if memory is exhausted. */
char *monarch_map_buffer(void);
void monarch_unmap_buffer(char *buffer);
