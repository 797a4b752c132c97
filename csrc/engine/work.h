/* The copying threads. */
#pragma once

#include "engine/schedule.h"

/* Starts all threads for peers and the first threads for the sources. Returns 0 if no thread for
 * the sources could be started. Later, a thread that takes work starts more threads for the sources
 * if none with its roles is idle, up to `most_threads`. Threads end when `stopping` is set and
 * their bell is rung. */
int monarch_start_threads(struct pool *p, int peer_threads);
/* Serves waiting readers while this thread's fill waits for a peer (monarch_engine.serve_readers).
 * For a reader, the thread may begin a second fill, which may also wait for a peer. A call during
 * this second wait does nothing, so that no third fill begins. */
void monarch_serve_readers(struct monarch_engine *e, char *buffer);
/* Carries out the fill `job`, an order that has a reader's descriptor. The order has a slot, and is
 * in no queue. Until the fill ends, the calling thread serves no other readers. */
void monarch_do_handed(struct worker *w, struct job *job);
/* Maps a thread's buffer of MONARCH_CHUNK bytes. Only pages that are touched take memory. Returns
 * NULL if memory is exhausted. */
char *monarch_map_buffer(void);
void monarch_unmap_buffer(char *buffer);
