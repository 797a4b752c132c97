#define _GNU_SOURCE
#include "track.h"

#include <signal.h>

#include "attributes.h"
#include "sys.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

uint64_t monarch_track_table[MONARCH_TRACKED] SELDOM;
static unsigned highest; /* nothing above it was ever tracked */

/* --- whose table it is --------------------------------------------------------------------------
 * A child of vfork runs in its parent's memory with descriptors of its own: what it closes and
 * duplicates is none of the table's business. */

static uint32_t owner; /* atomic: the process whose descriptors are meant */
/* A page that the kernel clears in children of forks that we do not see; not in those of vfork. */
static uint32_t *forked_mark;

void monarch_track_mark(void) {
    uint32_t *page = 0;
    if (__atomic_load_n(&forked_mark, __ATOMIC_ACQUIRE))
        return;
    long p = sys6(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p < 0 && p > -4096)
        return;
    if (sys6(SYS_madvise, p, 4096, MADV_WIPEONFORK, 0, 0, 0) == 0) {
        *(uint32_t *)p = 1;
        if (__atomic_compare_exchange_n(&forked_mark, &page, (uint32_t *)p, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return;
    }
    sys_unmap((void *)p, 4096);
}

int monarch_track_is_mine(void) {
    uint32_t pid = (uint32_t)sys_getpid(), known = __atomic_load_n(&owner, __ATOMIC_ACQUIRE);
    uint32_t *mark = __atomic_load_n(&forked_mark, __ATOMIC_ACQUIRE);
    if (known == pid)
        return 1;
    if (known && !(mark && !*mark))
        return 0;
    monarch_track_adopt();
    return 1;
}

void monarch_track_adopt(void) {
    uint32_t *mark = __atomic_load_n(&forked_mark, __ATOMIC_ACQUIRE);
    __atomic_store_n(&owner, (uint32_t)sys_getpid(), __ATOMIC_RELEASE);
    if (mark)
        __atomic_store_n(mark, 1, __ATOMIC_RELEASE);
}

static uint64_t process(void) { return (uint64_t)sys_getpid() & 0x7FFFFF; }

int monarch_track_is_own(uint64_t w) { return (w >> 9 & 0x7FFFFF) == process(); }

/* --- the words ----------------------------------------------------------------------------------
 */

/* Whether somebody of this process replaces it now. A promotion that fork has interrupted goes on
 * in the parent alone. */
static int is_held(uint64_t w) { return (w & TRACK_HELD) && monarch_track_is_own(w); }

static void yield(void) { sys6(SYS_sched_yield, 0, 0, 0, 0, 0, 0); }

static int change(int fd, uint64_t *seen, uint64_t to) {
    return __atomic_compare_exchange_n(&monarch_track_table[fd], seen, to, 0, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
}

void monarch_track(struct session *s, int fd, uint64_t entry) {
    if ((unsigned)fd >= MONARCH_TRACKED || !monarch_fills_of(s))
        return;
    monarch_track_mark();
    if (!monarch_track_is_mine())
        return;
    unsigned seen = __atomic_load_n(&highest, __ATOMIC_RELAXED);
    while ((unsigned)fd > seen && !__atomic_compare_exchange_n(&highest, &seen, (unsigned)fd, 0,
                                                               __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    __atomic_store_n(&monarch_track_table[fd],
                     (uint64_t)monarch_session_number(s) << 4 | process() << 9 | (entry + 1) << 32,
                     __ATOMIC_SEQ_CST);
}

void monarch_track_flag_slow(int fd, uint64_t flag) {
    uint64_t w = monarch_tracked(fd);
    if (!w || !monarch_track_is_mine())
        return;
    while (w && (is_held(w) || !(w & flag))) {
        if (is_held(w)) {
            yield();
            w = monarch_tracked(fd);
        } else if (change(fd, &w, w | flag)) {
            return;
        }
    }
}

void monarch_track_again(int fd, int fresh) {
    uint64_t w = monarch_tracked(fd);
    if (w && (unsigned)fresh < MONARCH_TRACKED) {
        monarch_track(monarch_track_session(w), fresh, monarch_track_entry(w));
        monarch_track_flag(fresh, TRACK_SHARED);
    }
}

void monarch_untrack_slow(int fd) {
    uint64_t w = monarch_tracked(fd);
    if (!w || !monarch_track_is_mine())
        return;
    while (w) {
        if (is_held(w)) {
            yield();
            w = monarch_tracked(fd);
        } else if (change(fd, &w, 0)) {
            return;
        }
    }
}

void monarch_untrack_range(unsigned first, unsigned last) {
    unsigned end = __atomic_load_n(&highest, __ATOMIC_RELAXED);
    for (unsigned fd = first; fd <= last && fd <= end; fd++)
        monarch_untrack((int)fd);
}

void monarch_track_share_all(void) {
    unsigned end = __atomic_load_n(&highest, __ATOMIC_RELAXED);
    for (unsigned fd = 0; fd <= end; fd++)
        monarch_track_flag((int)fd, TRACK_SHARED);
}

/* --- holding ------------------------------------------------------------------------------------
 */

int monarch_track_hold(int fd, uint64_t expected, struct monarch_held *held) {
    uint64_t w = monarch_tracked(fd);
    if (!w || !monarch_track_is_mine())
        return 0;
    held->signals = sys_signals(SIG_BLOCK, ~0ULL);
    while (w && (!expected || w == expected)) {
        if (is_held(w)) {
            yield();
            w = monarch_tracked(fd);
        } else if (change(fd, &w, (w & ~(0x7FFFFFULL << 9)) | process() << 9 | TRACK_HELD)) {
            held->word = w;
            return 1;
        }
    }
    sys_signals(SIG_SETMASK, held->signals);
    return 0;
}

void monarch_track_release(int fd, const struct monarch_held *held, uint64_t word) {
    __atomic_store_n(&monarch_track_table[fd], word, __ATOMIC_SEQ_CST);
    sys_signals(SIG_SETMASK, held->signals);
}

void monarch_track_wait_for_all(void) {
    unsigned end = __atomic_load_n(&highest, __ATOMIC_SEQ_CST);
    for (unsigned fd = 0; fd <= end; fd++)
        while (is_held(__atomic_load_n(&monarch_track_table[fd], __ATOMIC_SEQ_CST)))
            yield();
}
