/* Calls all of csrc/plan under sanitizers, with sizes that exercise the different paths of the
 * code. Exits with 0 if orders are permutations, counts add up and units out of range are refused.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

static const uint64_t SIZES[] = {1, 2, 3, 511, 512, 513, 514, 1025, 46340, 46341, 70001};

static void fail(const char *what, uint64_t n) {
    fprintf(stderr, "%s of %llu\n", what, (unsigned long long)n);
    exit(1);
}

static void check_permutation(const char *what, const int32_t *order, uint64_t n) {
    char *seen = calloc(n, 1);
    for (uint64_t i = 0; i < n; i++) {
        if (order[i] < 0 || (uint64_t)order[i] >= n || seen[order[i]])
            fail(what, n);
        seen[order[i]] = 1;
    }
    free(seen);
}

static void shuffles(uint64_t n) {
    struct monarch_mersenne g;
    uint32_t state = 42;
    int32_t *order = malloc(n * sizeof *order), *again = malloc(n * sizeof *again);
    monarch_mersenne_seed(&g, 7);
    for (int large = 0; large < 2; large++) {
        monarch_torch_randperm(&g, large, order, n);
        check_permutation("randperm", order, n);
        monarch_mersenne_shuffle(&g, large, order, n);
        check_permutation("shuffle with mt19937", order, n);
        monarch_mersenne_skip(&g, n);
        monarch_torch_randint(&g, n, large, order, n);
        for (uint64_t i = 0; i < n; i++)
            if (order[i] < 0 || (uint64_t)order[i] >= n)
                fail("randint", n);
    }
    for (uint64_t buffer = 1; buffer <= n; buffer = buffer * 7 + 1) {
        if (monarch_buffer_shuffle(3, 4, buffer, order, n) != 0)
            fail("memory", n);
        check_permutation("buffer", order, n);
        if (monarch_minstd_buffer(&state, buffer, order, again, n) != 0)
            fail("memory", n);
        check_permutation("minstd buffer", again, n);
    }
    monarch_minstd_shuffle(&state, order, n);
    check_permutation("shuffle with minstd", order, n);
    free(order);
    free(again);
}

/* Runs the functions that analyse accesses, on three nodes of two ranks. Each unit is accessed once
 * in each epoch, and some places are empty. */
static void accesses(uint64_t units) {
    enum { NODES = 3, RANKS = 6, EPOCHS = 4 };
    uint64_t rows = (units + RANKS - 1) / RANKS, n = rows * RANKS;
    struct monarch_mersenne g;
    int32_t *order = malloc(n * sizeof *order), *nodes = malloc(units * 2 * sizeof *nodes);
    uint32_t *counts = calloc(units, sizeof *counts), *best = malloc(units * 2 * sizeof *best);
    uint64_t *cursors = malloc(units * sizeof *cursors), room = units * EPOCHS;
    uint16_t *slots = malloc(room * sizeof *slots), *all = calloc(NODES * units, sizeof *all);
    int64_t *first = malloc(units * sizeof *first), *next = malloc(n * sizeof *next);
    uint32_t scratch[NODES] = {0};
    for (uint64_t i = 0; i < units; i++) {
        cursors[i] = i * EPOCHS;
        first[i] = -1;
    }
    monarch_mersenne_seed(&g, 1);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        memset(order, -1, n * sizeof *order);
        monarch_torch_randperm(&g, 0, order, units);
        if (monarch_plan_count(order, n, counts, units) != 0 ||
            monarch_plan_count_nodes(order, rows, RANKS, 2, all, units) != 0 ||
            monarch_plan_first(order, n, (int64_t)n * epoch, first, units) != 0 ||
            monarch_plan_next(order, n, (int64_t)n * epoch, first, units, next) != 0 ||
            monarch_plan_collect(order, rows, RANKS, 2, 0, units, cursors, slots, room) != 0)
            fail("accesses", units);
    }
    monarch_plan_rank(slots, cursors, units, 2, scratch, nodes, best);
    for (uint64_t i = 0; i < units; i++) {
        uint32_t sum = all[i] + all[units + i] + all[2 * units + i];
        if (counts[i] != EPOCHS || sum != EPOCHS ||
            all[(uint64_t)nodes[2 * i] * units + i] != best[2 * i])
            fail("counts", units);
    }
    if (monarch_plan_collect(order, rows, RANKS, 2, 0, units, cursors, slots, room) == 0)
        fail("an overflow", units);
    if (units > 1 && (monarch_plan_count(order, n, counts, units - 1) == 0 ||
                      monarch_plan_count_nodes(order, rows, RANKS, 2, all, units - 1) == 0 ||
                      monarch_plan_first(order, n, 0, first, units - 1) == 0 ||
                      monarch_plan_next(order, n, 0, first, units - 1, next) == 0))
        fail("a unit that is none", units);
    free(order), free(nodes), free(counts), free(best), free(cursors), free(slots);
    free(all), free(first), free(next);
}

/* Deals samples with all combinations of options. Node 1 holds more samples than node 2. Nodes 0
 * and 3 hold none. */
static void deals(uint64_t n) {
    enum { NODES = 4, RANKS = 8, WIDTH = 3 };
    struct monarch_mersenne g;
    int32_t *order = malloc(n * sizeof *order), *out = malloc(n * sizeof *out);
    int32_t *holders = malloc(n * WIDTH * sizeof *holders);
    monarch_mersenne_seed(&g, 5);
    monarch_torch_randint(&g, NODES, 0, holders, n * WIDTH);
    for (uint64_t i = 0; i < n * WIDTH; i++)
        holders[i] = holders[i] % 3 ? 1 : holders[i] - 1;
    monarch_torch_randperm(&g, 0, order, n);
    for (uint64_t per_step = 1; per_step <= n; per_step = per_step * 5 + 2)
        for (int way = 0; way < 8; way++) {
            struct monarch_deal deal = {.nodes = NODES,
                                        .ranks = RANKS,
                                        .per_step = per_step,
                                        .width = way & 1 ? WIDTH : 1,
                                        .holders = holders,
                                        .cap = way & 2 ? (way & 4 ? 1.0 : 2.5) : 0,
                                        .most = (int32_t)((5 * per_step + 15) / 16),
                                        .least = way & 4 ? 3 : 0};
            uint64_t batches = (n + per_step - 1) / per_step * RANKS;
            int64_t *starts = malloc((batches + 1) * sizeof *starts);
            int32_t *loads = malloc(batches * sizeof *loads);
            if (monarch_plan_deal(&deal, order, n, out, starts, loads) != 0)
                fail("memory", n);
            check_permutation("a deal", out, n);
            for (uint64_t i = 0; i < batches; i++)
                if (loads[i] < 0 || loads[i] > starts[i + 1] - starts[i])
                    fail("loads", n);
            free(starts), free(loads);
        }
    free(order), free(out), free(holders);
}

int main(void) {
    const char pool[] = "abc";
    const uint64_t starts[] = {0, 1, 3}, sizes[] = {5, 6};
    uint64_t sum[2] = {0, 0};
    uint32_t numbers[9];
    for (unsigned i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        shuffles(SIZES[i]);
        accesses(SIZES[i]);
        deals(SIZES[i]);
    }
    monarch_plan_digest(pool, starts, sizes, 2, sum);
    monarch_philox(1, 2, numbers, 9);
    return 0;
}
