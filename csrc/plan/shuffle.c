/* Shuffles, and the generators of their random numbers. Each shuffle draws exactly the random
 * numbers that the sampler's own library draws.
 *
 * In a large dataset, the items to be exchanged are far apart in memory. So several hundred
 * positions are computed together, and their items are prefetched before the exchange. */
#include <stdlib.h>

#include "plan/plan.h"

/* Number of positions that are computed together. It is even, because some shuffles draw two
 * positions at a time. It is large enough to hide the memory's latency, and small enough for the
 * first-level cache. */
#define AHEAD 512

static void exchange(int32_t *items, uint64_t first, const uint32_t *with, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        int32_t kept = items[first + i];
        items[first + i] = items[with[i]];
        items[with[i]] = kept;
    }
}

/* --- MT19937 (Matsumoto and Nishimura, 1998), seeded by its init_genrand ---------------------- */

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

/* --- torch ------------------------------------------------------------------------------------ */

/* The Fisher-Yates shuffle, from the first item to the last. Torch uses this algorithm for n below
 * 2**32 / 20, and draws 32 bits for each item. */
static void randperm(struct monarch_mersenne *g, int32_t *out, uint64_t n) {
    uint32_t with[AHEAD];
    for (uint64_t i = 0; i < n; i++)
        out[i] = (int32_t)i;
    for (uint64_t i = 0; i + 1 < n; i += AHEAD) {
        uint64_t some = n - 1 - i < AHEAD ? n - 1 - i : AHEAD;
        monarch_mersenne_fill(g, with, some);
        for (uint64_t j = 0; j < some; j++) {
            uint32_t at = (uint32_t)(i + j);
            with[j] = at + with[j] % ((uint32_t)n - at);
            __builtin_prefetch(&out[with[j]], 1);
        }
        exchange(out, i, with, some);
    }
}

/* Combines two draws into one number; the first draw is its upper half. */
static uint64_t pair(const uint32_t *draws) { return (uint64_t)draws[0] << 32 | draws[1]; }

/* The "inside-out" shuffle. Each new item goes to the end, or takes the place of a random earlier
 * item, which moves to the end. */
static void randperm_large(struct monarch_mersenne *g, int32_t *out, uint64_t n) {
    uint32_t draws[2 * AHEAD];
    for (uint64_t i = 0; i < n; i += AHEAD) {
        uint64_t some = n - i < AHEAD ? n - i : AHEAD;
        monarch_mersenne_fill(g, draws, 2 * some);
        for (uint64_t j = 0; j < some; j++) {
            draws[j] = (uint32_t)(pair(draws + 2 * j) % (i + j + 1));
            __builtin_prefetch(&out[draws[j]], 1);
        }
        for (uint64_t j = 0; j < some; j++) {
            out[i + j] = (int32_t)(i + j);
            out[i + j] = out[draws[j]];
            out[draws[j]] = (int32_t)(i + j);
        }
    }
}

void monarch_torch_randperm(struct monarch_mersenne *g, int large, int32_t *out, uint64_t n) {
    if (large)
        randperm_large(g, out, n);
    else
        randperm(g, out, n);
}

void monarch_torch_randint(struct monarch_mersenne *g, uint64_t high, int wide, int32_t *out,
                           uint64_t n) {
    uint32_t draws[2 * AHEAD];
    uint64_t each = wide ? 2 : 1;
    for (uint64_t i = 0; i < n; i += AHEAD) {
        uint64_t some = n - i < AHEAD ? n - i : AHEAD;
        monarch_mersenne_fill(g, draws, each * some);
        for (uint64_t j = 0; j < some; j++)
            out[i + j] = (int32_t)((wide ? pair(draws + 2 * j) : draws[j]) % high);
    }
}

/* --- libstdc++ -------------------------------------------------------------------------------- */

/* The modulus of std::minstd_rand0. */
#define MINSTD_MODULUS 2147483647U
/* max() - min() of std::minstd_rand0: one less than the number of its values */
#define MINSTD_NUMBERS 2147483645U

static uint32_t minstd_draw(uint32_t *state) {
    *state = (uint32_t)((uint64_t)*state * 16807 % MINSTD_MODULUS);
    return *state - 1;
}

/* Draws like std::uniform_int_distribution(0, below - 1) from std::minstd_rand0. Divides the
 * generator's range into `below` equal parts. If a drawn number lies after the last part, draws
 * again. */
static uint32_t minstd_below(uint32_t *state, uint32_t below) {
    uint32_t scale = MINSTD_NUMBERS / below, past = below * scale, drawn;
    do
        drawn = minstd_draw(state);
    while (drawn >= past);
    return drawn / scale;
}

static uint32_t mersenne_draw(struct monarch_mersenne *g) {
    uint32_t drawn;
    monarch_mersenne_fill(g, &drawn, 1);
    return drawn;
}

/* Draws like std::uniform_int_distribution(0, below - 1) from std::mt19937. by_division: draws as
 * GCC did before version 11, that is, divides the generator's range like minstd_below. Later
 * versions return the upper half of a product (Lemire, 2019) for generators like std::mt19937,
 * whose numbers use all bits of a word. */
static uint32_t mersenne_below(struct monarch_mersenne *g, uint32_t below, int by_division) {
    if (by_division) {
        uint32_t scale = UINT32_MAX / below, drawn;
        do
            drawn = mersenne_draw(g);
        while ((uint64_t)drawn >= (uint64_t)below * scale);
        return drawn / scale;
    }
    uint64_t product = (uint64_t)mersenne_draw(g) * below;
    if ((uint32_t)product < below) {
        uint32_t least = -below % below;
        while ((uint32_t)product < least)
            product = (uint64_t)mersenne_draw(g) * below;
    }
    return (uint32_t)(product >> 32);
}

struct source {
    uint32_t *minstd; /* the generator's state */
    struct monarch_mersenne *mersenne;
    int by_division;
};

static uint32_t below(struct source *s, uint32_t bound) {
    if (s->mersenne)
        return mersenne_below(s->mersenne, bound, s->by_division);
    return minstd_below(s->minstd, bound);
}

/* Draws a partner for each position p from `at` on: a position less than p + 1. The caller
 * exchanges the items at p and at its partner. One draw yields two partners. The drawn number is
 * less than the product of their two bounds. Its quotient and its remainder by the second bound are
 * the partners. So the generator's range must be at least this product. */
static void places_in_pairs(struct source *s, uint64_t at, uint32_t *with, uint64_t some) {
    for (uint64_t j = 0; j < some; j += 2) {
        uint32_t second = (uint32_t)(at + j + 2);
        uint32_t both = below(s, (second - 1) * second);
        with[j] = both / second;
        with[j + 1] = both % second;
    }
}

static void places(struct source *s, uint64_t at, uint32_t *with, uint64_t some) {
    for (uint64_t j = 0; j < some; j++)
        with[j] = below(s, (uint32_t)(at + j + 1));
}

static void shuffle(struct source *s, uint32_t numbers, int32_t *items, uint64_t n) {
    uint32_t with[AHEAD];
    uint64_t at = 1;
    int in_pairs = n > 0 && numbers / n >= n;
    if (in_pairs && n % 2 == 0) {
        with[0] = below(s, 2);
        exchange(items, 1, with, 1);
        at = 2;
    }
    for (; at < n; at += AHEAD) {
        uint64_t some = n - at < AHEAD ? n - at : AHEAD;
        (in_pairs ? places_in_pairs : places)(s, at, with, some);
        for (uint64_t j = 0; j < some; j++)
            __builtin_prefetch(&items[with[j]], 1);
        exchange(items, at, with, some);
    }
}

void monarch_minstd_shuffle(uint32_t *state, int32_t *items, uint64_t n) {
    struct source s = {.minstd = state};
    shuffle(&s, MINSTD_NUMBERS, items, n);
}

int monarch_minstd_buffer(uint32_t *state, uint64_t buffer, const int32_t *items, int32_t *out,
                          uint64_t n) {
    int32_t *held = malloc((buffer ? buffer : 1) * sizeof *held);
    if (!held)
        return -1;
    for (uint64_t taken = 0, filled = 0; taken < n; taken++) {
        for (; filled < n && filled - taken < buffer; filled++)
            held[filled % buffer] = items[filled];
        uint64_t drawn = (taken + minstd_below(state, (uint32_t)(filled - taken))) % buffer;
        out[taken] = held[drawn];
        held[drawn] = held[taken % buffer];
    }
    free(held);
    return 0;
}

void monarch_mersenne_shuffle(struct monarch_mersenne *g, int by_division, int32_t *items,
                              uint64_t n) {
    struct source s = {.mersenne = g, .by_division = by_division};
    shuffle(&s, UINT32_MAX, items, n);
}
