/* How far programs have read files that had no copy when they were opened. The daemon hears of
 * those that were read to their end: it fills what lies beside them. A hint: losing one costs
 * speed.
 */
#ifndef MONARCH_PROGRESS_H
#define MONARCH_PROGRESS_H

#include <stdio.h>

#include "preload/session/session.h"

/* `n` bytes of the file were read. So many were in all, by this process; 0: it is not known. */
uint64_t monarch_progress(struct session *s, uint64_t id, uint64_t n);
uint64_t monarch_progress_of(uint64_t id);
/* The file counts as not read yet. */
void monarch_progress_begin_again(uint64_t id);
/* `n` more bytes are asked for, and from here on the copy's descriptor gives them, unseen. */
void monarch_progress_unseen(struct session *s, uint64_t id, uint64_t n);

/* A stream was opened on a copy that its open has waited for. */
void monarch_progress_stream(struct session *s, uint64_t id, const FILE *stream);
/* Before a stream is closed, whose reads nobody has seen. `fd` is its descriptor, or -1. */
void monarch_progress_end(const FILE *stream, int fd);

#endif
