/* Tells whether any mapping waits for its copy. */
#pragma once

#include <stdint.h>

/* Atomic: the number of mappings that wait for their copies. In a process that maps no source file,
 * this number is 0. While this number is 0, the interposed functions only load it, and need no
 * further work for mappings. */
extern uint32_t monarch_mappings_waiting;

static inline int monarch_mappings_exist(void) {
    return __builtin_expect(__atomic_load_n(&monarch_mappings_waiting, __ATOMIC_RELAXED) != 0, 0);
}

/* A value of the argument `what` of monarch_mappings_say: the mappings in the range must never be
 * replaced. Any other value of `what` is the argument `advice` of a call of madvise. */
#define MONARCH_FORGET (-1)
