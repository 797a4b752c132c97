/* The fill of one file. */
#pragma once

#include "copy/filling.h"

/* Begins the fill of an order: creates the copy and shows the fill to readers. Also opens the file
 * at the source, unless the bytes are to come from a peer or from a pack. On failure, sets the
 * job's result and returns NULL. */
struct fill *monarch_fill_begin(struct monarch_engine *e, struct job *job);
/* Begins the computation of a block's checksums. content_key: the key of the digest; NULL if no
 * digest is needed. If memory is exhausted, no digest is made. */
void monarch_block_sum_begin(struct block_sum_stream *s, const unsigned char *content_key);
/* Ends the computation, and stores the block's checksums in *out. Call this once after each
 * monarch_block_sum_begin. out: NULL if the sums are not needed. */
void monarch_block_sum_end(struct block_sum_stream *s, struct block_sum *out);
/* Copies `count` units of one block from a peer, a pack or the source. The caller has claimed these
 * units. stream: the checksums of the block's bytes so far, if the caller copies all bytes of the
 * block in sequence; else NULL. */
void monarch_fill_move(struct monarch_engine *e, struct fill *f, uint64_t unit, uint64_t count,
                       char *buffer, struct block_sum_stream *stream);
int monarch_fill_is_over(const struct fill *f); /* whether the fill is complete or has failed */
/* Ends a fill that is complete or has failed, and that no other thread uses: sets the job's result
 * and frees the fill. */
void monarch_fill_end(struct monarch_engine *e, struct fill *f);
