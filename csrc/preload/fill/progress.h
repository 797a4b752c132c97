/* Follows how far programs have read files that were opened without a copy, and how long sources
 * take.
 *
 * The daemon is told of files that were read to their end, and fills the files that lie beside
 * them. The progress is a hint: losing it costs speed only. */
#pragma once

#include <stdio.h>

#include "preload/session/session.h"

/* Counts `n` more bytes read of the file; returns how many this process has read of it in all, or 0
 * if that is not known. */
uint64_t monarch_progress(struct session *s, uint64_t id, uint64_t n);
uint64_t monarch_progress_of(uint64_t id);
/* Resets the file's count to 0: the file is being read anew. */
void monarch_progress_begin_again(uint64_t id);
/* Counts `n` more bytes that the program asks for on a descriptor that is the copy's now: its reads
 * are no longer seen. */
void monarch_progress_unseen(struct session *s, uint64_t id, uint64_t n);

/* Called after a stream was opened on a copy for which the open had to wait. */
void monarch_progress_stream(struct session *s, uint64_t id, const FILE *stream);
/* Called before a stream is closed. Nobody has seen its reads, so its offset tells how far the file
 * was read. `fd` is the stream's descriptor, or -1. */
void monarch_progress_end(const FILE *stream, int fd);

/* --- how long this process's own opens and reads at the sources take --- */

/* Whether the sources have returned most of this process's last files as soon as the page cache
 * does (at hand), or later than that, but as soon as a local disk does (near). Now and then both
 * return 0 all the same, so that reads go on being timed. */
int monarch_source_is_at_hand(void);
int monarch_source_is_near(void);

/* Called after an open or a read of a source's file that began at since_ns (monarch_now_ns). */
void monarch_note_source_open(uint64_t since_ns);
void monarch_note_source_read(uint64_t since_ns);

/* The mean time of an open and a read together [ns]; 0: nothing is known yet. */
uint64_t monarch_latency_ns(void);
