/* The fill of one file. */
#pragma once

#include "copy/filling.h"

/* Ends the claim of a file whose descriptor was handed over. Call this once that descriptor is
 * closed. */
void monarch_end_claim(struct monarch_clients *m, uint64_t id);
/* Returns whether a descriptor that was handed over must be closed now, because its program waits
 * for that or the claim has expired. */
int monarch_is_recalled(const struct monarch_clients *m, uint64_t id, uint64_t now_ns);
/* Closes the reader's descriptor that the order holds, if there is one. */
void monarch_close_handed(struct monarch_engine *e, struct job *job);
/* Creates the copy, shows the fill to readers, and opens the source's file unless a peer is asked
 * first. Returns NULL on failure; the job then has its result. */
struct fill *monarch_fill_begin(struct monarch_engine *e, struct job *job);
/* Gets `count` units of one block, which the caller has claimed, and writes them to the copy.
 * stream: the checksum of the block's bytes so far, if all of them are moved in sequence; else
 * NULL. */
void monarch_fill_move(struct monarch_engine *e, struct fill *f, uint64_t unit, uint64_t count,
                       char *buffer, struct block_sum_stream *stream);
int monarch_fill_is_over(const struct fill *f); /* whether the fill is complete or has failed */
/* Ends a fill that is complete or has failed, and that no other thread uses: sets the job's result
 * and frees the fill. */
void monarch_fill_end(struct monarch_engine *e, struct fill *f);

/* Returns whether a client has requested the file, and the request was not taken from the bitmap
 * yet. If so, the file will not stay ABSENT: a fill is about to be ordered. */
int monarch_is_requested(const struct monarch_clients *m, uint64_t id);
/* Makes the readers that wait for units [first, first + count) of an entry look again. */
void monarch_answer(struct monarch_clients *m, uint64_t entry, uint64_t first, uint64_t count);
