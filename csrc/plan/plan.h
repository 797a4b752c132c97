/* The inner loops of access plans: samplers' shuffles, exact to the index, and counts over all
 * accesses. Nothing here decides anything: Python says which sampler and which node, and what
 * follows from the numbers.
 *
 * Numbers of samples and of files are int32_t; where there is no access, the number is -1. */
#pragma once

#ifndef MONARCH_CDEF
#include <stdint.h>
#endif

/* --- MT19937, the generator of torch and of NumPy's RandomState: mersenne.c --------------------
 */

struct monarch_mersenne {
    uint32_t state[624];
    uint32_t used; /* words of `state` that were given out */
};

void monarch_mersenne_seed(struct monarch_mersenne *g, uint32_t seed);
void monarch_mersenne_skip(struct monarch_mersenne *g, uint64_t draws);
void monarch_mersenne_fill(struct monarch_mersenne *g, uint32_t *out, uint64_t n);

/* --- the orders of samplers: shuffle.c, buffer.c -----------------------------------------------
 */

/* Computes torch.randperm(n, generator=g) on the CPU. large: whether to use the algorithm that
 * torch has for n from 2**32 / 20 on. */
void monarch_torch_randperm(struct monarch_mersenne *g, int large, int32_t *out, uint64_t n);
/* Computes torch.randint(high, (n,), generator=g). wide: each number takes two draws. */
void monarch_torch_randint(struct monarch_mersenne *g, uint64_t high, int wide, int32_t *out,
                           uint64_t n);
/* Shuffles `items` as std::shuffle of libstdc++ does with std::minstd_rand0, whose state is
 * *state. */
void monarch_minstd_shuffle(uint32_t *state, int32_t *items, uint64_t n);
/* Draws `items` one after the other from a buffer that is kept full of them, by
 * std::uniform_int_distribution with std::minstd_rand0. Returns 0, or -1 without memory. */
int monarch_minstd_buffer(uint32_t *state, uint64_t buffer, const int32_t *items, int32_t *out,
                          uint64_t n);
/* Shuffles `items` as std::shuffle of libstdc++ does with std::mt19937. by_division: as before GCC
 * 11. */
void monarch_mersenne_shuffle(struct monarch_mersenne *g, int by_division, int32_t *items,
                              uint64_t n);
/* Computes the order that tf.data's shuffle(buffer) makes of 0, 1, ..., n-1, with the seeds that
 * its iterator gets. Returns 0, or -1 without memory. */
int monarch_buffer_shuffle(uint64_t seed, uint64_t seed2, uint64_t buffer, int32_t *out,
                           uint64_t n);
/* Computes the first `n` numbers of Philox 4x32-10. */
void monarch_philox(uint64_t seed, uint64_t seed2, uint32_t *out, uint64_t n);

/* --- counting accesses: access.c ---------------------------------------------------------------
 */

/* Adds 1 to counts[u] for each access to unit u. Returns 0, or -1 if a number is not below
 * `units`. */
int monarch_plan_count(const int32_t *accesses, uint64_t n, uint32_t *counts, uint64_t units);
/* Counts as monarch_plan_count does, for all nodes at once. A row of `accesses` has an access of
 * each of the `ranks` ranks; each node has `per_node` of the ranks. counts: (nodes, units). Returns
 * -2 if a count overflows, else what monarch_plan_count returns. */
int monarch_plan_count_nodes(const int32_t *accesses, uint64_t rows, uint64_t ranks,
                             uint64_t per_node, uint16_t *counts, uint64_t units);
/* The position of a use that never comes: later than all others. */
#define MONARCH_PLAN_NEVER INT64_MAX
/* Sets first[u] to the position of the first access to unit u, if first[u] was MONARCH_PLAN_NEVER.
 * Positions count up from `start`. Returns what monarch_plan_count does. */
int monarch_plan_first(const int32_t *accesses, uint64_t n, int64_t start, int64_t *first,
                       uint64_t units);
/* Sets next[i] to the position of the next access to the unit u of access i. The function goes
 * backwards through the accesses: next[i] = later[u], then later[u] = the position of i. next[i] is
 * MONARCH_PLAN_NEVER where there is no access. Returns what monarch_plan_count does. */
int monarch_plan_next(const int32_t *accesses, uint64_t n, int64_t start, int64_t *later,
                      uint64_t units, int64_t *next);

/* --- which node uses a file most: holder.c -----------------------------------------------------
 */

/* Appends the node of each access to the slots of the access's unit, for the units [low, low +
 * units). cursors[u] is where the unit's next slot is. Returns 0, or -1 if the slots would
 * overflow. */
int monarch_plan_collect(const int32_t *accesses, uint64_t rows, uint64_t ranks, uint64_t per_node,
                         uint64_t low, uint64_t units, uint64_t *cursors, uint16_t *slots,
                         uint64_t room);
/* For each unit, whose slots end at ends[u], finds the `top` nodes that use it most; of nodes that
 * use it equally often, the one with the earlier first use comes first. Where there are fewer
 * nodes, the node is -1 and its count 0. nodes, counts: (units, top). scratch: as many counters as
 * there are nodes, all 0 before and after. */
void monarch_plan_rank(const uint16_t *slots, const uint64_t *ends, uint64_t units, uint64_t top,
                       uint32_t *scratch, int32_t *nodes, uint32_t *counts);

/* --- who takes which sample of a step: deal.c --------------------------------------------------
 */

struct monarch_deal {
    uint32_t nodes;
    uint32_t ranks;    /* a multiple of the nodes; rank r is on node r / (ranks / nodes) */
    uint64_t per_step; /* samples of all ranks in a step; the last step may have fewer */
    uint32_t width;
    const int32_t *holders; /* (samples, width) the nodes that hold each sample, and -1 */
    double cap;             /* most samples of a rank, as a multiple of an equal batch; 0: equal */
    int32_t most;           /* the same in samples; a smaller step's cap is no larger */
    int32_t least;          /* fewest samples of a rank in a step that has so many */
};

/* Deals the order of an epoch, step by step. Samples go to nodes that hold them, as many as there
 * is room for; the others are shared out so that all nodes load equally many, as far as room
 * allows. A batch begins with its loads.
 * out: (count,) the samples by step and rank; starts: (steps * ranks + 1,) where each batch begins
 * there; loads: (steps * ranks,) how many of its samples a rank's node does not hold. Returns 0, or
 * -1 without memory. */
int monarch_plan_deal(const struct monarch_deal *deal, const int32_t *order, uint64_t count,
                      int32_t *out, int64_t *starts, int32_t *loads);

/* --- what a dataset is: digest.c ---------------------------------------------------------------
 */

/* Adds to sum[2], for each file, two hashes of its name (bytes starts[i] to starts[i + 1] of
 * `pool`) and its size: the sum does not depend on the order of the files. */
void monarch_plan_digest(const char *pool, const uint64_t *starts, const uint64_t *sizes,
                         uint64_t n, uint64_t *sum);
