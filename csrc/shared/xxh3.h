/* XXH3-64 (seed 0, default secret): the hash of paths and of blocks. The code follows the published
 * specification. Tests compare it with the reference library, for every range of lengths that has
 * its own formula. */
#pragma once

#include <stddef.h>
#include <stdint.h>

uint64_t monarch_xxh3(const void *data, size_t len);

/* These functions compute XXH3-64 incrementally, so that a caller need not hold all data in memory.
 */
#define XXH3_BLOCK 1024
struct xxh3_stream {
    uint64_t acc[8];
    uint64_t total;
    /* Number of input bytes that are not hashed yet. They are in `hold`, from hold[64] on. hold[0]
     * to hold[63] are the 64 input bytes before them. */
    size_t held;
    unsigned char hold[64 + XXH3_BLOCK];
};
void monarch_xxh3_begin(struct xxh3_stream *s);
void monarch_xxh3_add(struct xxh3_stream *s, const void *data, size_t len);
uint64_t monarch_xxh3_end(const struct xxh3_stream *s);
