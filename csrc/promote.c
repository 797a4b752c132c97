#define _GNU_SOURCE
#include "promote.h"

#include <signal.h>

#include "serve.h"
#include "sys.h"
#include "track.h"

/* Files with locks, by two bits each: no list that grows, and few others are taken for one. */
#define LOCKED_BITS 8192
static uint64_t locked[LOCKED_BITS / 64];

static uint64_t bit_of(uint64_t dev, uint64_t ino, int which) {
    return (monarch_mix(ino ^ monarch_mix(dev)) >> (which * 32)) % LOCKED_BITS;
}

static int has_locks(uint64_t dev, uint64_t ino) {
    for (int i = 0; i < 2; i++) {
        uint64_t bit = bit_of(dev, ino, i);
        if (!(__atomic_load_n(&locked[bit / 64], __ATOMIC_ACQUIRE) >> (bit % 64) & 1))
            return 0;
    }
    return 1;
}

void monarch_keep_locks(int fd) {
    struct stat st;
    if (!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE) || sys_fstat(fd, &st) != 0 ||
        !S_ISREG(st.st_mode))
        return;
    for (int i = 0; i < 2; i++) {
        uint64_t bit = bit_of(st.st_dev, st.st_ino, i);
        __atomic_fetch_or(&locked[bit / 64], 1ULL << (bit % 64), __ATOMIC_ACQ_REL);
    }
    monarch_track_flag(fd, TRACK_SHARED);
}

static uint64_t signals(int how, uint64_t set) {
    uint64_t old = 0;
    sys6(SYS_rt_sigprocmask, how, (long)&set, (long)&old, sizeof set, 0, 0);
    return old;
}

/* The entry is ours from the exchange on: close, dup2 and the like wait, or were there before, and
 * then it fails. A signal handler that closed the descriptor in the middle would wait for itself.
 */
static int replace(int fd, uint64_t tracked, const struct monarch_wanted *w, int copy) {
    int done = 0;
    uint64_t set = signals(SIG_BLOCK, ~0ULL);
    if (__atomic_compare_exchange_n(&monarch_track_table[fd], &tracked, tracked | TRACK_PROMOTING,
                                    0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        struct stat st;
        int flags = sys_fcntl(fd, F_GETFD, 0);
        if (flags >= 0 && sys_fstat(fd, &st) == 0 && st.st_ino == w->entry->ino &&
            st.st_dev == w->session->control->source[w->entry->source].dev &&
            !has_locks(st.st_dev, st.st_ino))
            done = sys6(SYS_dup3, copy, fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0, 0, 0, 0) == fd;
        __atomic_store_n(&monarch_track_table[fd], done ? 0 : tracked | TRACK_SHARED,
                         __ATOMIC_RELEASE);
    }
    signals(SIG_SETMASK, set);
    return done;
}

int monarch_promote(int fd, uint64_t tracked, const struct monarch_wanted *w) {
    uint64_t word = monarch_word_of(w);
    char path[MONARCH_COPY_PATH];
    if (!tracked || tracked & (TRACK_OFFSET | TRACK_SHARED | TRACK_PROMOTING) ||
        MONARCH_WORD_STATE(word) != MONARCH_PRESENT || !monarch_track_is_own(tracked))
        return 0;
    int flags = sys_fcntl(fd, F_GETFL, 0);
    monarch_copy_path(&w->session->control->tier[MONARCH_WORD_TIER(word)], MONARCH_WORD_COPY(word),
                      path);
    int copy = flags < 0
                   ? -1
                   : sys_openat(AT_FDCWD, path, (flags & (O_NONBLOCK | O_LARGEFILE)) | O_CLOEXEC);
    if (copy < 0)
        return 0;
    int done = replace(fd, tracked, w, copy);
    sys_close(copy);
    if (done)
        __atomic_fetch_add(&monarch_my_stats(w->session)->promotions, 1, __ATOMIC_RELAXED);
    return done;
}
