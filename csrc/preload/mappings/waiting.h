/* Whether any mapping waits for its copy. */
#pragma once

#include <stdint.h>

/* Atomic: the number of ranges that wait. In a process that maps no source file, each interposed
 * call costs only a load of this number. */
extern uint32_t monarch_mappings_waiting;

static inline int monarch_mappings_exist(void) {
    return __builtin_expect(__atomic_load_n(&monarch_mappings_waiting, __ATOMIC_RELAXED) != 0, 0);
}

/* A value for the effect of a call on a range of addresses. MONARCH_FORGET: the mapping in the
 * range must never be replaced. Any other value is an advice of madvise. */
#define MONARCH_FORGET (-1)
