#define _GNU_SOURCE
#include "track.h"

#include <errno.h>

#include "sys.h"

uint64_t monarch_track_table[MONARCH_TRACKED];
static unsigned highest; /* nothing above it was ever tracked */

static uint64_t process(void) { return (uint64_t)sys_getpid() & 0x7FFFFF; }

int monarch_track_is_own(uint64_t w) { return (w >> 9 & 0x7FFFFF) == process(); }

void monarch_track(struct session *s, int fd, uint64_t entry) {
    if ((unsigned)fd >= MONARCH_TRACKED || !s->fills)
        return;
    unsigned seen = __atomic_load_n(&highest, __ATOMIC_RELAXED);
    while ((unsigned)fd > seen && !__atomic_compare_exchange_n(&highest, &seen, (unsigned)fd, 0,
                                                               __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    __atomic_store_n(&monarch_track_table[fd],
                     (uint64_t)monarch_session_number(s) << 4 | process() << 9 | (entry + 1) << 32,
                     __ATOMIC_RELEASE);
}

void monarch_track_flag(int fd, uint64_t flag) {
    uint64_t w = monarch_tracked(fd);
    while (w && !(w & flag) &&
           !__atomic_compare_exchange_n(&monarch_track_table[fd], &w, w | flag, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE))
        ;
}

void monarch_track_again(int fd, int fresh) {
    monarch_track_flag(fd, TRACK_SHARED);
    uint64_t w = monarch_tracked(fd);
    if (w && (unsigned)fresh < MONARCH_TRACKED) {
        monarch_track(monarch_track_session(w), fresh, monarch_track_entry(w));
        monarch_track_flag(fresh, TRACK_SHARED);
    }
}

void monarch_untrack_slow(int fd) {
    uint64_t w = monarch_tracked(fd);
    while (w) {
        /* A promotion that fork has interrupted goes on in the parent alone. */
        if ((w & TRACK_PROMOTING) && monarch_track_is_own(w)) {
            sys6(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
            w = monarch_tracked(fd);
        } else if (__atomic_compare_exchange_n(&monarch_track_table[fd], &w, 0, 0, __ATOMIC_ACQ_REL,
                                               __ATOMIC_ACQUIRE)) {
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

void monarch_untrack_stream(FILE *stream) {
    if (!stream || !__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE))
        return;
    int old_errno = errno;
    monarch_untrack(fileno(stream)); /* a stream in memory has none */
    errno = old_errno;
}
