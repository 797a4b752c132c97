/* Measures how many bytes threads receive from each endpoint, and how long that takes. An endpoint
 * is either all sources together, or one peer. Policies choose among endpoints by the throughput
 * that each thread gets. In section 4 of the NoPFS paper, this is r_j(p_j) / p_j: p_j threads use
 * endpoint j, and r_j is the throughput of all these threads together. */
#include "copy/flow.h"

#include "copy/state.h"
#include "shared/clock.h"

/* If a small file is opened and read in less time than this [ns], its source is probably fast. A
 * local disk or the page cache needs less time. A network file system needs more, because its
 * server is asked twice: for the open, and for the bytes. */
#define FAST_NS 300000
/* note() computes the share of a source's recent files for which a condition holds. */
#define SHARE_ALL 1024U /* the share if the condition holds for all files */
#define JUDGED 32U      /* number of fills after which programs may rely on a source's share */
#define SHARE_STEP 32U  /* the share is a running mean over about this many files */

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

/* Adds one file to the running mean. Sets the source's bit in *bits if the mean exceeds one half,
 * else clears it. If two threads write the mean at once, one of their files is not counted. */
static void note(uint32_t *mean, uint32_t *bits, unsigned source, int is_true) {
    uint32_t share = __atomic_load_n(mean, __ATOMIC_RELAXED), bit = 1U << source;
    share = share - share / SHARE_STEP + (is_true ? SHARE_ALL / SHARE_STEP : 0);
    __atomic_store_n(mean, share, __ATOMIC_RELAXED);
    uint32_t is_set = share > SHARE_ALL / 2 ? bit : 0;
    if ((__atomic_load_n(bits, __ATOMIC_RELAXED) & bit) == is_set)
        return;
    if (is_set)
        __atomic_fetch_or(bits, bit, __ATOMIC_RELAXED);
    else
        __atomic_fetch_and(bits, ~bit, __ATOMIC_RELAXED);
}

void monarch_note_speed(struct monarch_engine *e, unsigned source, uint64_t ns) {
    note(&e->fast[source], &e->control->fast_sources, source, ns < FAST_NS);
    if (__atomic_add_fetch(&e->judged[source], 1, __ATOMIC_RELAXED) == JUDGED)
        __atomic_fetch_or(&e->control->judged_sources, 1U << source, __ATOMIC_RELAXED);
}

void monarch_note_pages(struct monarch_engine *e, unsigned source, int are_gone) {
    note(&e->pageless[source], &e->control->pageless_sources, source, are_gone);
}
