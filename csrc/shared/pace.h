/* Limits the rate at which several threads together begin operations. The operations are spaced
 * evenly: after a pause, there is no burst. */
#pragma once

#include <errno.h>
#include <stdint.h>
#include <time.h>

#include "shared/sys.h"

struct monarch_pace {
    uint64_t interval_ns; /* 0: no limit */
    uint64_t next_ns;     /* atomic: when the next operation may begin */
};

static inline void monarch_pace_init(struct monarch_pace *p, uint64_t ops_per_s) {
    p->interval_ns = ops_per_s ? 1000000000ULL / ops_per_s : 0;
    p->next_ns = 0;
}

/* Sleeps until the caller's operation may begin, and returns 1. If that is after `until_ns` [ns of
 * CLOCK_MONOTONIC], returns 0 at once and does not count the operation. */
static inline int monarch_keep_pace(struct monarch_pace *p, uint64_t until_ns) {
    uint64_t now = monarch_now_ns(), next = __atomic_load_n(&p->next_ns, __ATOMIC_RELAXED), mine;
    do {
        mine = p->interval_ns && next > now ? next : now;
        if (mine > until_ns)
            return 0;
    } while (p->interval_ns &&
             !__atomic_compare_exchange_n(&p->next_ns, &next, mine + p->interval_ns, 0,
                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    struct timespec t = {(time_t)(mine / 1000000000ULL), (long)(mine % 1000000000ULL)};
    while (mine > now && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
    return 1;
}
