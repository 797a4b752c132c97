#include "preload/descriptors/locked_files.h"

#include "preload/process/attributes.h"
#include "shared/catalog.h"

/* A Bloom filter, two bits per file, of the files with locks: its size is fixed and false positives
 * are rare. The bits stay set for the life of the process. A process that locks thousands of files
 * has most others treated as locked, which costs time only. */
#define LOCKED_BITS 8192
static uint64_t locked[LOCKED_BITS / 64] SELDOM;

static uint64_t bit_of(uint64_t dev, uint64_t ino, int which) {
    return (monarch_mix(ino ^ monarch_mix(dev)) >> (which * 32)) % LOCKED_BITS;
}

int monarch_has_locks(uint64_t dev, uint64_t ino) {
    for (int i = 0; i < 2; i++) {
        uint64_t bit = bit_of(dev, ino, i);
        if (!(__atomic_load_n(&locked[bit / 64], __ATOMIC_SEQ_CST) >> (bit % 64) & 1))
            return 0;
    }
    return 1;
}

void monarch_note_locks(uint64_t dev, uint64_t ino) {
    for (int i = 0; i < 2; i++) {
        uint64_t bit = bit_of(dev, ino, i);
        __atomic_fetch_or(&locked[bit / 64], 1ULL << (bit % 64), __ATOMIC_SEQ_CST);
    }
}
