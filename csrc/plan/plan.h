/* The inner loops of access plans: shuffles, and counts over all accesses. The shuffles yield
 * exactly the indices that the sampler's own library (for example, torch) yields. Python chooses
 * the sampler and the nodes, and evaluates the counts.
 *
 * Each access of a training job reads one unit: a sample, a file or a block of a file. An array of
 * accesses holds the numbers of these units; -1 means that there is no access. */
#pragma once

#ifndef MONARCH_CDEF
#include <stdint.h>
#endif

/* --- MT19937, the generator of torch and of NumPy's RandomState: shuffle.c -------------------- */

struct monarch_mersenne {
    uint32_t state[624];
    uint32_t used; /* number of words of `state` that were already used */
};

void monarch_mersenne_seed(struct monarch_mersenne *g, uint32_t seed);
void monarch_mersenne_skip(struct monarch_mersenne *g, uint64_t draws);
void monarch_mersenne_fill(struct monarch_mersenne *g, uint32_t *out, uint64_t n);

/* --- the orders that samplers make: shuffle.c, buffer.c --------------------------------------- */

/* Computes torch.randperm(n, generator=g) on the CPU. large: whether to use the algorithm that
 * torch uses for n >= 2**32 / 20. */
void monarch_torch_randperm(struct monarch_mersenne *g, int large, int32_t *out, uint64_t n);
/* Computes torch.randint(high, (n,), generator=g). wide: whether each number combines two draws of
 * the generator. */
void monarch_torch_randint(struct monarch_mersenne *g, uint64_t high, int wide, int32_t *out,
                           uint64_t n);
/* Shuffles `items` like libstdc++'s std::shuffle with std::minstd_rand0, whose state is *state. */
void monarch_minstd_shuffle(uint32_t *state, int32_t *items, uint64_t n);
/* Writes `items` to `out` in random order. Draws each output from a buffer of `buffer` items, and
 * then puts the next item into the buffer. Draws like std::uniform_int_distribution with
 * std::minstd_rand0. Returns 0, or -1 if memory is exhausted. */
int monarch_minstd_buffer(uint32_t *state, uint64_t buffer, const int32_t *items, int32_t *out,
                          uint64_t n);
/* Shuffles `items` like libstdc++'s std::shuffle with std::mt19937. by_division: whether to draw
 * numbers as GCC did before version 11. */
void monarch_mersenne_shuffle(struct monarch_mersenne *g, int by_division, int32_t *items,
                              uint64_t n);
/* Computes the order in which tf.data's shuffle(buffer) yields the items 0, 1, ..., n-1. `seed` and
 * `seed2` are the seeds of the shuffle's iterator. Returns 0, or -1 if memory is exhausted. */
int monarch_buffer_shuffle(uint64_t seed, uint64_t seed2, uint64_t buffer, int32_t *out,
                           uint64_t n);
/* Computes the first `n` numbers of the Philox 4x32-10 generator. */
void monarch_philox(uint64_t seed, uint64_t seed2, uint32_t *out, uint64_t n);

/* --- counting accesses: access.c -------------------------------------------------------------- */

/* Adds 1 to counts[u] for each access to unit u. Returns 0, or -1 if a unit's number is `units` or
 * larger. */
int monarch_plan_count(const int32_t *accesses, uint64_t n, uint32_t *counts, uint64_t units);
/* Like monarch_plan_count, but counts for each node separately. A row of `accesses` has one access
 * for each of the `ranks` ranks; each node has `per_node` ranks. counts: shape (nodes, units).
 * Returns 0, -1 as monarch_plan_count does, or -2 if a count overflows. */
int monarch_plan_count_nodes(const int32_t *accesses, uint64_t rows, uint64_t ranks,
                             uint64_t per_node, uint16_t *counts, uint64_t units);
/* The position of an access that never happens. It is larger than every real position. */
#define MONARCH_PLAN_NEVER INT64_MAX
/* If first[u] is MONARCH_PLAN_NEVER, sets it to the position of the first access to unit u. The
 * accesses have the positions `start`, `start` + 1, ... Returns 0, or -1 as monarch_plan_count
 * does. */
int monarch_plan_first(const int32_t *accesses, uint64_t n, int64_t start, int64_t *first,
                       uint64_t units);
/* Sets next[i] to the position of the next access to the unit of access i. If accesses[i] is -1,
 * sets next[i] to MONARCH_PLAN_NEVER. Call this once for each part of a long sequence, from the
 * last part to the first. later[u]: the position of the first access to unit u in all later parts.
 * The call updates `later` for the next call. Returns 0, or -1 as monarch_plan_count does. */
int monarch_plan_next(const int32_t *accesses, uint64_t n, int64_t start, int64_t *later,
                      uint64_t units, int64_t *next);

/* --- which node uses a file most: holder.c ---------------------------------------------------- */

/* Collects the accesses to the units [low, low + units). Each unit has consecutive slots, one for
 * each of its accesses. An access to unit low + u writes the number of its node to
 * slots[cursors[u]], and increments cursors[u]. `slots` has `room` elements. Returns 0, or -1 if
 * `slots` would overflow. */
int monarch_plan_collect(const int32_t *accesses, uint64_t rows, uint64_t ranks, uint64_t per_node,
                         uint64_t low, uint64_t units, uint64_t *cursors, uint16_t *slots,
                         uint64_t room);
/* Finds the `top` nodes that use each unit most, and how often each of them uses it. Reads the
 * slots that monarch_plan_collect has filled; the slots of unit u end at ends[u]. Among nodes with
 * equal counts, the one that uses the unit first comes first. Missing nodes are -1, with count 0.
 * nodes, counts: shape (units, top). scratch: one counter per node, all 0 before and after the
 * call. */
void monarch_plan_rank(const uint16_t *slots, const uint64_t *ends, uint64_t units, uint64_t top,
                       uint32_t *scratch, int32_t *nodes, uint32_t *counts);

/* --- which rank takes which sample of a step: deal.c ------------------------------------------ */

struct monarch_deal {
    uint32_t nodes;
    uint32_t ranks;    /* a multiple of `nodes`; rank r is on node r / (ranks / nodes) */
    uint64_t per_step; /* samples of all ranks in a step; the last step may have fewer samples */
    uint32_t width;
    /* (samples, width): for each sample, the nodes that hold it; unused elements are -1 */
    const int32_t *holders;
    /* maximum number of samples that a rank gets in a step, as a multiple of an equal share; 0:
     * every rank gets an equal share */
    double cap;
    /* maximum number of samples that a rank gets in any step: `cap` times an equal share of a full
     * step */
    int32_t most;
    /* minimum number of samples that a rank gets in a step; applies only if the step has enough
     * samples for all ranks */
    int32_t least;
};

/* Deals the samples of an epoch to the ranks, step by step. A sample goes to a node that holds it,
 * if such a node has room. But nodes give up such samples if other nodes would otherwise get less
 * than their minimum. The other samples are called loads, because their nodes must load them. All
 * nodes get the same number of loads, as far as room and minimum allow. The samples of one rank in
 * one step are a batch, which begins with its loads.
 *
 * order: the `count` samples, as the epoch uses them. out: the samples, sorted by step and rank.
 * starts: for each batch, where it begins in `out`; the last element is `count`. loads: for each
 * batch, the number of its loads. Returns 0, or -1 if memory is exhausted. */
int monarch_plan_deal(const struct monarch_deal *deal, const int32_t *order, uint64_t count,
                      int32_t *out, int64_t *starts, int32_t *loads);

/* --- the digest of a dataset: digest.c -------------------------------------------------------- */

/* Adds a hash of each file's name and size to sum[0], and a different hash of them to sum[1]. The
 * name of file i is the bytes starts[i] to starts[i + 1] of `pool`. The sums do not depend on the
 * order of the files. */
void monarch_plan_digest(const char *pool, const uint64_t *starts, const uint64_t *sizes,
                         uint64_t n, uint64_t *sum);
