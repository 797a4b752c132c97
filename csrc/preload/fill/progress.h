/* Follows how far programs have read files that were opened without a copy, and how long sources
 * take.
 *
 * The daemon is told of files that were read to their end, and fills the files that lie beside
 * them. The progress is a hint: losing it costs speed only. */
#pragma once

#include <stdio.h>

#include "preload/session/session.h"

/* Counts `n` more bytes that were read of the file. Returns how many bytes of the file this process
 * has read in all, or 0 if that is not known. */
uint64_t monarch_progress(struct session *s, uint64_t id, uint64_t n);
uint64_t monarch_progress_of(uint64_t id);
/* Resets the file's count to 0: the file is being read anew. */
void monarch_progress_begin_again(uint64_t id);
/* Called when a read of `n` bytes has promoted its descriptor, so that later reads will not be
 * seen. If the reads so far are at least an eighth of the file, the file counts as read to its
 * end. */
void monarch_progress_unseen(struct session *s, uint64_t id, uint64_t n);

/* Called after a stream was opened on a copy for which the open had to wait: remembers the stream,
 * so that monarch_progress_end can tell how far it was read. */
void monarch_progress_stream(struct session *s, uint64_t id, const FILE *stream);
/* Called before a stream is closed. The library has not seen the stream's reads, so the
 * descriptor's offset tells how far the file was read. `fd` is the stream's descriptor, or -1. */
void monarch_progress_end(const FILE *stream, int fd);

/* --- how long this process's own opens and reads at the sources take --- */

/* Whether the sources gave most of the last files of this process as fast as the page cache does
 * (at hand), or more slowly, but as fast as a local disk does (near). Now and then both functions
 * return 0 nevertheless, so that some reads are still timed. */
int monarch_source_is_at_hand(void);
int monarch_source_is_near(void);

/* Called after an open or a read of a source's file that began at since_ns (monarch_now_ns). */
void monarch_note_source_open(uint64_t since_ns);
void monarch_note_source_read(uint64_t since_ns);

/* Returns the mean time of an open and a read together [ns], or 0 if none was timed yet. */
uint64_t monarch_latency_ns(void);
