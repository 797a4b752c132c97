/* Whether any mapping waits for its copy. */
#ifndef MONARCH_WAITING_H
#define MONARCH_WAITING_H

#include <stdint.h>

/* Atomic: how many ranges wait. A process that maps nothing of ours pays this one load. */
extern uint32_t monarch_mappings_waiting;

static inline int monarch_mappings_exist(void) {
    return __builtin_expect(__atomic_load_n(&monarch_mappings_waiting, __ATOMIC_RELAXED) != 0, 0);
}

/* What is said of a range of addresses: never to be replaced. Other values are advices of madvise.
 */
#define MONARCH_FORGET (-1)

#endif
