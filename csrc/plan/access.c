/* Counts a plan's accesses to each unit. Finds the first access to each unit and, for each access,
 * the next access to the same unit. */
#include "plan/plan.h"

/* A counter is prefetched this many accesses before it is used. */
#define AHEAD 32

int monarch_plan_count(const int32_t *accesses, uint64_t n, uint32_t *counts, uint64_t units) {
    for (uint64_t i = 0; i < n; i++) {
        /* accesses[i + AHEAD] may be -1 or too large, but a prefetch of an invalid address does no
         * harm. */
        if (i + AHEAD < n)
            __builtin_prefetch(&counts[accesses[i + AHEAD]], 1);
        if (accesses[i] < 0)
            continue;
        if ((uint64_t)accesses[i] >= units)
            return -1;
        counts[accesses[i]]++;
    }
    return 0;
}

int monarch_plan_count_nodes(const int32_t *accesses, uint64_t rows, uint64_t ranks,
                             uint64_t per_node, uint16_t *counts, uint64_t units) {
    for (uint64_t row = 0; row < rows; row++, accesses += ranks)
        for (uint64_t rank = 0; rank < ranks; rank++) {
            if (accesses[rank] < 0)
                continue;
            if ((uint64_t)accesses[rank] >= units)
                return -1;
            uint16_t *count = &counts[rank / per_node * units + (uint64_t)accesses[rank]];
            if (++*count == 0)
                return -2;
        }
    return 0;
}

int monarch_plan_first(const int32_t *accesses, uint64_t n, int64_t start, int64_t *first,
                       uint64_t units) {
    for (uint64_t i = 0; i < n; i++) {
        if (accesses[i] < 0)
            continue;
        if ((uint64_t)accesses[i] >= units)
            return -1;
        if (first[accesses[i]] == MONARCH_PLAN_NEVER)
            first[accesses[i]] = start + (int64_t)i;
    }
    return 0;
}

int monarch_plan_next(const int32_t *accesses, uint64_t n, int64_t start, int64_t *later,
                      uint64_t units, int64_t *next) {
    for (uint64_t i = n; i-- > 0;) {
        next[i] = MONARCH_PLAN_NEVER;
        if (accesses[i] < 0)
            continue;
        if ((uint64_t)accesses[i] >= units)
            return -1;
        next[i] = later[accesses[i]];
        later[accesses[i]] = start + (int64_t)i;
    }
    return 0;
}
