/* Which of the node's ranks this process belongs to: the processes that train, as whoever started
 * them numbers them, each with its workers. */
#ifndef MONARCH_RANK_H
#define MONARCH_RANK_H

#include "preload/session/session.h"

/* The launcher's number + 1; 0: none has given one. */
extern unsigned monarch_rank __attribute__((visibility("hidden")));

/* In a constructor: later, other threads may change the environment. */
void monarch_rank_init(void);

/* A file of this size was opened; missed: its copy was not there, or had to be waited for. */
static inline void monarch_count_rank(struct session *s, uint64_t bytes, int missed) {
    if (__builtin_expect(!monarch_rank, 1))
        return;
    struct monarch_rank *r = &s->clients->rank[monarch_rank];
    __atomic_fetch_add(&r->opened_bytes, bytes, __ATOMIC_RELAXED);
    if (missed)
        __atomic_fetch_add(&r->missed_bytes, bytes, __ATOMIC_RELAXED);
}

#endif
