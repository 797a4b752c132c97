/* The node's rank that this process belongs to. A rank is a training process, as its launcher
 * numbers it, with its workers. */
#pragma once

#include "preload/session/session.h"

/* The launcher's number + 1; 0: no launcher has given one. */
extern unsigned monarch_rank __attribute__((visibility("hidden")));

/* Call it in a constructor: later, other threads may change the environment. */
void monarch_rank_init(void);

/* Counts an open of a file of this size; missed: its copy was not there, or had to be waited
 * for. */
static inline void monarch_count_rank(struct session *s, uint64_t bytes, int missed) {
    if (__builtin_expect(!monarch_rank, 1))
        return;
    struct monarch_rank *r = &s->clients->rank[monarch_rank];
    __atomic_fetch_add(&r->opened_bytes, bytes, __ATOMIC_RELAXED);
    if (missed)
        __atomic_fetch_add(&r->missed_bytes, bytes, __ATOMIC_RELAXED);
}
