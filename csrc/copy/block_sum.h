/* The checksums of a block, computed while it is copied. They are the block's XXH3-64 and the
 * digest (peers/mac.h) that vouches for the block when it is sent to peers. */
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
    struct monarch_mac *content; /* NULL: without a digest */
};

/* Begins a stream. content_key: NULL for no digest. Without memory for a digest, none is made. */
void monarch_block_sum_begin(struct block_sum_stream *s, const unsigned char *content_key);
void monarch_block_sum_add(struct block_sum_stream *s, const void *bytes, size_t n);
/* Ends the stream. Call after each `begin`. out: NULL if the sum is not needed. */
void monarch_block_sum_end(struct block_sum_stream *s, struct block_sum *out);
