/* Counts how much this process reads of files without copies, and measures how long the sources
 * take.
 *
 * The reads of a file are counted if the file had no copy at the open. The counts tell the daemon
 * which files were read to their end. The daemon then fills other files of the same directories in
 * advance. If a count is lost, these other files are filled later. */
#pragma once

#include <stdio.h>

#include "preload/session/session.h"

/* Adds `n` to the number of bytes that this process has read of the file. Returns the sum, or 0 if
 * the sum is unknown. */
uint64_t monarch_progress(struct session *s, uint64_t id, uint64_t n);
uint64_t monarch_progress_of(uint64_t id);
/* Sets the number of bytes that this process has read of the file to 0, so that only later reads
 * are counted. */
void monarch_progress_begin_again(uint64_t id);
/* Call this after a read of `n` bytes that has promoted the descriptor: the descriptor now refers
 * to the copy, and the library does not see its later reads. If at least an eighth of the file was
 * read, including these `n` bytes, reports the file to the daemon as read to its end. */
void monarch_progress_unseen(struct session *s, uint64_t id, uint64_t n);

/* Call this after a stream was opened on a copy, if the open had to wait for the copy. Remembers
 * the stream, so that monarch_progress_end can check how far the stream was read. */
void monarch_progress_stream(struct session *s, uint64_t id, const FILE *stream);
/* Call this before a stream is closed. The library does not see a stream's reads, so this function
 * checks the offset of the stream's descriptor. If the offset is at the end of the file, reports
 * the file to the daemon as read to its end. fd: the stream's descriptor, or -1. */
void monarch_progress_end(const FILE *stream, int fd);

/* Adds `n_bytes` to the number of bytes that the program itself has read at the sources. For a
 * tracked descriptor, call this at each read. The library does not see the reads of a stream, a
 * mapping or an untracked descriptor. Call this once for each of them, with the size of the file
 * or of its mapped part. */
void monarch_count_source(struct session *s, uint64_t n_bytes);

/* --- how long this process's own opens and reads at the sources take --- */

/* Returns whether most of the recent opens and reads at the sources were as fast as the page
 * cache. One call in 256 returns 0 regardless. The library measures reads only after a result of
 * 0, and would otherwise not notice that the sources have become slower. */
int monarch_source_is_at_hand(void);
/* Returns whether most of the recent opens and reads at the sources were as fast as a local disk,
 * but slower than the page cache. One call in 256 returns 0 regardless, as for
 * monarch_source_is_at_hand. */
int monarch_source_is_near(void);

/* Call this after an open or a read at a source. took_ns: how long the open or the read took. */
void monarch_note_source_open(uint64_t took_ns);
void monarch_note_source_read(uint64_t took_ns);

/* Returns the mean duration of an open at the sources plus the mean duration of a read [ns].
 * Returns 0 if no open was measured yet. */
uint64_t monarch_latency_ns(void);
