/* The daemon's futexes: the doorbell on which its loop sleeps, and the bells of its copying
 * threads. Clients and the daemon's own C threads ring them. */
#pragma once

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shared/catalog.h"

static inline void monarch_futex_wake(uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static inline void monarch_doorbell_ring(uint32_t *doorbell) {
    __atomic_fetch_add(doorbell, 1, __ATOMIC_SEQ_CST);
    monarch_futex_wake(doorbell);
}

/* Wakes at most `threads` of the threads that sleep in monarch_bell_sleep. Their `who` must share a
 * bit with this `who`. A thread that is just about to sleep falls asleep nevertheless;
 * monarch_bell_keep_awake and monarch_bell_ring prevent that. */
static inline void monarch_bell_wake(struct monarch_bell *b, int threads, uint32_t who) {
    if (__atomic_load_n(&b->sleeping, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &b->rings, FUTEX_WAKE_BITSET, threads, NULL, NULL, who);
}

/* If a thread has found no work and is about to sleep, keeps it awake, so that it looks for work
 * again. Wakes no sleeping thread. */
static inline void monarch_bell_keep_awake(struct monarch_bell *b) {
    __atomic_fetch_add(&b->rings, 1, __ATOMIC_SEQ_CST);
}

/* Rings the bell; call this after adding work. Wakes at most `threads` sleeping threads, like
 * monarch_bell_wake. A thread that has found no work and is about to sleep looks for work again. */
static inline void monarch_bell_ring(struct monarch_bell *b, int threads, uint32_t who) {
    monarch_bell_keep_awake(b);
    monarch_bell_wake(b, threads, who);
}

/* Rings the copying threads' bell for a new demand of the server of peers. (For their own demands,
 * clients call ring_engine in preload/fill/wait.c.) of: the origin from which the demanded file is
 * filled; MONARCH_ORIGINS: rings the bells of both origins. */
static inline void monarch_ring_for_demand(struct monarch_clients *m, enum monarch_origin of) {
    for (int origin = 0; origin < MONARCH_ORIGINS; origin++)
        if (of == MONARCH_ORIGINS || (int)of == origin)
            monarch_bell_ring(&m->engine[origin], 1, FUTEX_BITSET_MATCH_ANY);
}

/* Sleeps until monarch_bell_wake or monarch_bell_ring wakes the thread, or until `until_ns` [ns of
 * CLOCK_MONOTONIC; 0: no limit]. who: a set of bits; a call wakes the thread only if the call's own
 * `who` shares a bit with it. seen: a value of `rings`, read earlier. If `rings` has changed since
 * then, returns at once. Returns 0 on timeout, otherwise 1. */
static inline int monarch_bell_sleep(struct monarch_bell *b, uint32_t seen, uint32_t who,
                                     uint64_t until_ns) {
    struct timespec until = {(time_t)(until_ns / 1000000000), (long)(until_ns % 1000000000)};
    long r =
        syscall(SYS_futex, &b->rings, FUTEX_WAIT_BITSET, seen, until_ns ? &until : NULL, NULL, who);
    return r == 0 || errno != ETIMEDOUT;
}
