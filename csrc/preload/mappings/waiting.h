/* Whether any mapping waits for its copy. */
#pragma once

#include <stdint.h>

/* Atomic: the number of ranges that wait. A process that maps no source file pays for this load
 * alone. */
extern uint32_t monarch_mappings_waiting;

static inline int monarch_mappings_exist(void) {
    return __builtin_expect(__atomic_load_n(&monarch_mappings_waiting, __ATOMIC_RELAXED) != 0, 0);
}

/* The change of a range of addresses. MONARCH_FORGET means that the range is never replaced;
 * any other value is an advice of madvise. */
#define MONARCH_FORGET (-1)
