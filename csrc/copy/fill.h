/* The fill of one file. */
#pragma once

#include "copy/filling.h"

/* Begins the fill of an order: creates the copy and shows the fill to readers. Also opens the file
 * at the source, unless the bytes are to come from a peer or a pack. On failure, sets the job's
 * result and returns NULL. */
struct fill *monarch_fill_begin(struct monarch_engine *e, struct job *job);
/* Begins the checksums of a block. content_key: the key of the digest; NULL if no digest is needed.
 * If memory is exhausted, no digest is made. */
void monarch_block_sum_begin(struct block_sum_stream *s, const unsigned char *content_key);
/* Ends what monarch_block_sum_begin has begun, and frees its memory. Must be called exactly once
 * for each begin. out: where to store the sums; NULL if they are not needed. */
void monarch_block_sum_end(struct block_sum_stream *s, struct block_sum *out);
/* Copies `count` units of one block from a peer, a pack or the source. The caller must have claimed
 * these units. stream: the block's checksums so far, if the caller copies all bytes of the block in
 * sequence; else NULL. */
void monarch_fill_move(struct monarch_engine *e, struct fill *f, uint64_t unit, uint64_t count,
                       char *buffer, struct block_sum_stream *stream);
int monarch_fill_is_over(const struct fill *f); /* whether the fill is complete or has failed */
/* Ends a fill that is complete or has failed, and that no other thread uses: sets the job's result
 * and frees the fill. */
void monarch_fill_end(struct monarch_engine *e, struct fill *f);
