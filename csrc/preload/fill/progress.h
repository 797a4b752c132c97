/* Follows how far programs have read files that had no copy when they were opened.
 *
 * The daemon is told of files that were read to their end, and fills what lies beside them. The
 * progress is a hint: losing it costs speed only. */
#pragma once

#include <stdio.h>

#include "preload/session/session.h"

/* Counts `n` more bytes read of the file; returns the bytes that this process has read of it in
 * all, 0: not known. */
uint64_t monarch_progress(struct session *s, uint64_t id, uint64_t n);
uint64_t monarch_progress_of(uint64_t id);
/* Resets the file's count: it is not read yet. */
void monarch_progress_begin_again(uint64_t id);
/* Counts `n` more bytes that are asked for: from here on the copy's descriptor gives them,
 * unseen. */
void monarch_progress_unseen(struct session *s, uint64_t id, uint64_t n);

/* Called when a stream was opened on a copy for which its open has waited. */
void monarch_progress_stream(struct session *s, uint64_t id, const FILE *stream);
/* Called before a stream is closed, whose reads nobody has seen. `fd` is its descriptor, or -1. */
void monarch_progress_end(const FILE *stream, int fd);
