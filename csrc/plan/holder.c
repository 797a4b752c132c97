/* Finds the nodes that use each file most. One pass covers as many files as memory allows. It
 * collects the accesses of all epochs to these files; each access takes two bytes. Then it counts
 * exactly how often each node uses each file. */
#include "plan/plan.h"

/* Number of accesses that are processed together: first, the memory for all of them is prefetched;
 * then it is used. */
#define AHEAD 512

struct found {
    uint64_t n;
    uint64_t units[AHEAD];
    uint16_t nodes[AHEAD];
};

static int append(const struct found *f, uint64_t *cursors, uint16_t *slots, uint64_t room) {
    for (uint64_t i = 0; i < f->n; i++)
        __builtin_prefetch(&slots[cursors[f->units[i]]], 1);
    for (uint64_t i = 0; i < f->n; i++) {
        uint64_t at = cursors[f->units[i]]++;
        if (at >= room)
            return -1;
        slots[at] = f->nodes[i];
    }
    return 0;
}

int monarch_plan_collect(const int32_t *accesses, uint64_t rows, uint64_t ranks, uint64_t per_node,
                         uint64_t low, uint64_t units, uint64_t *cursors, uint16_t *slots,
                         uint64_t room) {
    struct found f = {.n = 0};
    for (uint64_t row = 0; row < rows; row++, accesses += ranks)
        for (uint64_t rank = 0, node = 0, left = per_node; rank < ranks; rank++, left--) {
            if (left == 0) {
                node++;
                left = per_node;
            }
            /* The unsigned subtraction turns -1 and all numbers below `low` into very large
             * numbers, which are skipped. */
            uint64_t unit = (uint64_t)accesses[rank] - low;
            if (unit >= units)
                continue;
            __builtin_prefetch(&cursors[unit], 1);
            f.units[f.n] = unit;
            f.nodes[f.n] = (uint16_t)node;
            if (++f.n == AHEAD) {
                if (append(&f, cursors, slots, room) != 0)
                    return -1;
                f.n = 0;
            }
        }
    return append(&f, cursors, slots, room);
}

/* Returns the node with the highest count. If several nodes have the same highest count, returns
 * the node that comes first in `slots`. */
static int32_t best_of(const uint16_t *slots, uint64_t n, const uint32_t *counts) {
    int32_t best = -1;
    uint32_t most = 0;
    for (uint64_t i = 0; i < n; i++)
        if (counts[slots[i]] > most) {
            most = counts[slots[i]];
            best = slots[i];
        }
    return best;
}

void monarch_plan_rank(const uint16_t *slots, const uint64_t *ends, uint64_t units, uint64_t top,
                       uint32_t *scratch, int32_t *nodes, uint32_t *counts) {
    uint64_t start = 0;
    for (uint64_t unit = 0; unit < units; unit++) {
        const uint16_t *own = slots + start;
        uint64_t n = ends[unit] - start;
        for (uint64_t i = 0; i < n; i++)
            scratch[own[i]]++;
        for (uint64_t k = 0; k < top; k++) {
            int32_t best = best_of(own, n, scratch);
            nodes[unit * top + k] = best;
            counts[unit * top + k] = best < 0 ? 0 : scratch[best];
            if (best >= 0)
                scratch[best] = 0;
        }
        for (uint64_t i = 0; i < n; i++)
            scratch[own[i]] = 0;
        start = ends[unit];
    }
}
