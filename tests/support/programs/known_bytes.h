/* The content of files in which every byte encodes its position; content() in support/epoch.py
 * computes the same. */
#ifndef MONARCH_TESTS_KNOWN_BYTES_H
#define MONARCH_TESTS_KNOWN_BYTES_H
#include <stdint.h>
#include <string.h>
#include <time.h>

/* Returns the 64-bit word `i` of the file with this seed. */
static inline uint64_t word_of(uint64_t seed, uint64_t i) {
    uint64_t v = seed << 32 | i;
    v = (v ^ v >> 32) * 0xD6E8FEB86659FD93ULL;
    v = (v ^ v >> 32) * 0xD6E8FEB86659FD93ULL;
    return v ^ v >> 32;
}

/* Returns how many of the `n` bytes that were read at offset `at` differ from the file's bytes. */
static inline uint64_t count_wrong(uint64_t seed, const char *data, uint64_t at, uint64_t n) {
    uint64_t wrong = 0, known, i = 0;
    while (i < n) {
        uint64_t word = word_of(seed, (at + i) / 8);
        if ((at + i) % 8 == 0 && n - i >= 8 && memcpy(&known, data + i, 8) && known == word) {
            i += 8;
            continue;
        }
        wrong += (unsigned char)data[i] != (word >> ((at + i) % 8 * 8) & 0xFF);
        i++;
    }
    return wrong;
}

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Sets `*most` to `value` if `value` is larger. Several threads may call this at the same time. */
static inline void raise_to(uint64_t *most, uint64_t value) {
    uint64_t seen = __atomic_load_n(most, __ATOMIC_RELAXED);
    while (value > seen &&
           !__atomic_compare_exchange_n(most, &seen, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

#endif
