/* Tells whether any mapping waits for its copy. */
#pragma once

#include <stdint.h>

/* Atomic: the number of mappings that wait for their copies. While it is 0, the interposed
 * functions need no further work for mappings. In a process that maps no source file, it is always
 * 0. */
extern uint32_t monarch_mappings_waiting;

static inline int monarch_mappings_exist(void) {
    return __builtin_expect(__atomic_load_n(&monarch_mappings_waiting, __ATOMIC_RELAXED) != 0, 0);
}

/* A value of the argument `what` of monarch_mappings_say: the mappings in the range must never be
 * replaced. All other values are advice, as for madvise. */
#define MONARCH_FORGET (-1)
