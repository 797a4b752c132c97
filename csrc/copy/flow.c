/* Measures how many bytes threads receive from each endpoint, and how long that takes. An endpoint
 * is either all sources together, or one peer. Policies compare endpoints by the throughput per
 * thread. In section 4 of the NoPFS paper, this is r_j(p_j) / p_j. There, p_j is the number of
 * threads that use endpoint j, and r_j(p_j) is their throughput together. */
#include "copy/flow.h"

#include "copy/state.h"
#include "shared/clock.h"

static unsigned level_of(uint32_t threads) {
    unsigned level = 31U - (unsigned)__builtin_clz(threads);
    return level < MONARCH_LEVELS ? level : MONARCH_LEVELS - 1;
}

struct visit monarch_visit(struct monarch_engine *e, unsigned place) {
    struct endpoint *p = &e->endpoint[place];
    uint32_t threads = __atomic_add_fetch(&p->busy, 1, __ATOMIC_RELAXED);
    return (struct visit){p, monarch_now_ns(), level_of(threads)};
}

void monarch_leave_unseen(const struct visit *v) {
    __atomic_sub_fetch(&v->endpoint->busy, 1, __ATOMIC_RELAXED);
}

void monarch_leave(const struct visit *v, uint64_t bytes) {
    struct monarch_flow *flow = &v->endpoint->flow;
    uint64_t ns = monarch_now_ns() - v->since_ns;
    __atomic_fetch_add(&flow->bytes[v->level], bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(&flow->ns[v->level], ns, __ATOMIC_RELAXED);
    monarch_leave_unseen(v);
}

void monarch_engine_flows(struct monarch_engine *e, struct monarch_flow *out, uint32_t n) {
    for (uint32_t i = 0; i < n && i < MONARCH_ENDPOINTS; i++)
        for (int level = 0; level < MONARCH_LEVELS; level++) {
            const struct monarch_flow *flow = &e->endpoint[i].flow;
            out[i].bytes[level] = __atomic_load_n(&flow->bytes[level], __ATOMIC_RELAXED);
            out[i].ns[level] = __atomic_load_n(&flow->ns[level], __ATOMIC_RELAXED);
        }
}
