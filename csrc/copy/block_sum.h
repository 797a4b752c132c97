/* The two checksums of a block, computed while the block is copied. One is its XXH3-64. The other
 * is its digest (peers/mac.h), which authenticates the block when the block is sent to peers. */
#pragma once

#include <stddef.h>

#include "peers/mac.h"
#include "shared/xxh3.h"

struct block_sum {
    uint64_t xxh3;
    struct monarch_digest digest;
    int has_digest;
};

struct block_sum_stream {
    struct xxh3_stream xxh3;
    struct monarch_mac *content; /* NULL: no digest is made */
};

/* Begins the checksums of a block. content_key: the key of the digest; NULL if no digest is needed.
 * If memory is lacking, no digest is made. */
void monarch_block_sum_begin(struct block_sum_stream *s, const unsigned char *content_key);
void monarch_block_sum_add(struct block_sum_stream *s, const void *bytes, size_t n);
/* Ends the stream. Call this once after each monarch_block_sum_begin. out: NULL if the sums are not
 * needed. */
void monarch_block_sum_end(struct block_sum_stream *s, struct block_sum *out);
