/* Counts how much this process has read of files that had no copy when they were opened. Also
 * measures how long opens and reads at the sources take.
 *
 * The daemon learns which files were read to their end, and then fills other files of the same
 * directories. The counts are hints: if a count is lost, these other files are filled later. */
#pragma once

#include <stdio.h>

#include "preload/session/session.h"

/* Adds `n` to the number of bytes that this process has read of the file. Returns the sum, or 0 if
 * the sum is unknown. */
uint64_t monarch_progress(struct session *s, uint64_t id, uint64_t n);
uint64_t monarch_progress_of(uint64_t id);
/* Resets the number of bytes that this process has read of the file to 0, so that only later reads
 * count. */
void monarch_progress_begin_again(uint64_t id);
/* Call this when a read of `n` bytes has promoted its descriptor. The library does not see later
 * reads of the descriptor. So if at least an eighth of the file was read, including these `n`
 * bytes, the file counts as read to its end. */
void monarch_progress_unseen(struct session *s, uint64_t id, uint64_t n);

/* Call this after a stream was opened on a copy, if the open had to wait for the copy. Remembers
 * the stream, so that monarch_progress_end can find out how far the stream was read. */
void monarch_progress_stream(struct session *s, uint64_t id, const FILE *stream);
/* Call this before a stream is closed; `fd` is the stream's descriptor, or -1. Because the library
 * does not see a stream's reads, this function checks the descriptor's offset: if the offset is at
 * the end of the file, the file counts as read to its end. */
void monarch_progress_end(const FILE *stream, int fd);

/* Counts bytes that a program itself reads at a source. For tracked descriptors, callers count each
 * read. The library does not see reads of streams, of mappings, or of files whose descriptors are
 * not tracked. In these cases, callers count the size of the file, or of its mapped part, once. */
void monarch_count_source(struct session *s, uint64_t n_bytes);

/* --- how long this process's own opens and reads at the sources take --- */

/* Returns whether the sources have served most of the recent opens and reads as fast as the page
 * cache does. Now and then, the result is 0 regardless, so that some reads are still timed. */
int monarch_source_is_at_hand(void);
/* Returns whether the sources have served most of the recent opens and reads as fast as a local
 * disk does, but not as fast as the page cache does. Now and then, the result is 0 regardless, so
 * that some reads are still timed. */
int monarch_source_is_near(void);

/* Call this after an open or a read at a source. took_ns: how long the open or the read took. */
void monarch_note_source_open(uint64_t took_ns);
void monarch_note_source_read(uint64_t took_ns);

/* Returns the mean time [ns] of an open at the sources plus the mean time of a read, or 0 if no
 * open was timed yet. */
uint64_t monarch_latency_ns(void);
