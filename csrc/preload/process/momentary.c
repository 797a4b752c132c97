#include "preload/process/momentary.h"

#include "shared/sys.h"

/* Longest time [ns] for which a fork waits until momentary descriptors are closed. Without a
 * limit, the fork could hang: a thread may hang in a call on such a descriptor if the tier or the
 * source does not answer. */
#define FORK_NS 20000000ULL
/* Longest time [ns] for which a fork keeps other threads from opening a momentary descriptor. The
 * kernel copies a process's descriptors in much less time. If the end of a fork is not noted
 * within this time, a signal handler has probably jumped out of the library's code. */
#define FORKING_NS 100000000ULL

/* Atomic. open_now: number of threads that have a momentary descriptor open, or are about to open
 * one. forking: number of threads that are forking. */
static uint32_t open_now, forking;
static uint64_t fork_ns; /* atomic: start of the latest fork */

static uint32_t get(const uint32_t *count) { return __atomic_load_n(count, __ATOMIC_SEQ_CST); }
static void add(uint32_t *count) { __atomic_fetch_add(count, 1, __ATOMIC_SEQ_CST); }

/* Decrements *count (`open_now` or `forking`), unless it is 0. If the library did not see a fork,
 * the child sets both counts to 0 when it notices the fork. A later call of this function then
 * finds 0. */
static void drop(uint32_t *count) {
    uint32_t n = get(count);
    while (n &&
           !__atomic_compare_exchange_n(count, &n, n - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
}

static int is_forking(void) {
    return get(&forking) &&
           monarch_now_ns() - __atomic_load_n(&fork_ns, __ATOMIC_RELAXED) < FORKING_NS;
}

/* This function first increments `open_now`, and then checks `forking`. A fork first increments
 * `forking`, and then checks `open_now`. So at least one of the two threads notices the other. */
void monarch_momentary_begin(void) {
    add(&open_now);
    for (unsigned n = 0; __builtin_expect(is_forking(), 0);) {
        drop(&open_now);
        sys_relax(n++);
        add(&open_now);
    }
}

void monarch_momentary_end(void) { drop(&open_now); }

void monarch_momentary_before_fork(void) {
    uint64_t start = monarch_now_ns();
    __atomic_store_n(&fork_ns, start, __ATOMIC_RELAXED);
    add(&forking);
    for (unsigned n = 0; get(&open_now) && monarch_now_ns() - start < FORK_NS;)
        sys_relax(n++);
}

void monarch_momentary_after_fork(void) { drop(&forking); }

void monarch_momentary_forget(void) {
    __atomic_store_n(&open_now, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&forking, 0, __ATOMIC_SEQ_CST);
}
