/* MT19937 (Matsumoto and Nishimura, 1998), seeded by its init_genrand. */
#include "plan/plan.h"

#define WORDS 624
#define MIDDLE 397
#define MATRIX 0x9908b0dfU

static uint32_t twist(uint32_t upper, uint32_t lower, uint32_t middle) {
    uint32_t mixed = (upper & 0x80000000U) | (lower & 0x7fffffffU);
    return middle ^ (mixed >> 1) ^ (-(lower & 1U) & MATRIX);
}

static uint32_t temper(uint32_t y) {
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680U;
    y ^= (y << 15) & 0xefc60000U;
    return y ^ (y >> 18);
}

static void renew(struct monarch_mersenne *g) {
    uint32_t *s = g->state;
    unsigned i;
    for (i = 0; i < WORDS - MIDDLE; i++)
        s[i] = twist(s[i], s[i + 1], s[i + MIDDLE]);
    for (; i < WORDS - 1; i++)
        s[i] = twist(s[i], s[i + 1], s[i + MIDDLE - WORDS]);
    s[WORDS - 1] = twist(s[WORDS - 1], s[0], s[MIDDLE - 1]);
    g->used = 0;
}

void monarch_mersenne_seed(struct monarch_mersenne *g, uint32_t seed) {
    g->state[0] = seed;
    for (uint32_t i = 1; i < WORDS; i++) {
        uint32_t before = g->state[i - 1];
        g->state[i] = 1812433253U * (before ^ (before >> 30)) + i;
    }
    g->used = WORDS;
}

void monarch_mersenne_skip(struct monarch_mersenne *g, uint64_t draws) {
    while (draws > WORDS - g->used) {
        draws -= WORDS - g->used;
        renew(g);
    }
    g->used += (uint32_t)draws;
}

void monarch_mersenne_fill(struct monarch_mersenne *g, uint32_t *out, uint64_t n) {
    while (n > 0) {
        if (g->used == WORDS)
            renew(g);
        uint64_t take = WORDS - g->used < n ? WORDS - g->used : n;
        const uint32_t *from = g->state + g->used;
        for (uint64_t i = 0; i < take; i++)
            out[i] = temper(from[i]);
        out += take;
        n -= take;
        g->used += (uint32_t)take;
    }
}
