/* XXH3-64 (seed 0, default secret): the hash of paths and of blocks. It is written from the
 * published specification; tests compare it with the reference library over all length classes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

uint64_t monarch_xxh3(const void *data, size_t len);

/* The same hash, computed over data that arrives in pieces, so that a caller need not hold all of
 * it in memory. */
#define XXH3_BLOCK 1024
struct xxh3_stream {
    uint64_t acc[8];
    uint64_t total;
    size_t held; /* bytes in `hold` that are not hashed yet; 64 earlier bytes lie before them */
    unsigned char hold[64 + XXH3_BLOCK];
};
void monarch_xxh3_begin(struct xxh3_stream *s);
void monarch_xxh3_add(struct xxh3_stream *s, const void *data, size_t len);
uint64_t monarch_xxh3_end(const struct xxh3_stream *s);
