#define _GNU_SOURCE
#include "promote.h"

#include <sys/sysmacros.h>

#include "attributes.h"
#include "log.h"
#include "serve.h"
#include "sys.h"
#include "track.h"

/* Files with locks, by two bits each: no list that grows, and few others are taken for one. */
#define LOCKED_BITS 8192
static uint64_t locked[LOCKED_BITS / 64] SELDOM;

static uint64_t bit_of(uint64_t dev, uint64_t ino, int which) {
    return (monarch_mix(ino ^ monarch_mix(dev)) >> (which * 32)) % LOCKED_BITS;
}

int monarch_has_locks(uint64_t dev, uint64_t ino) {
    for (int i = 0; i < 2; i++) {
        uint64_t bit = bit_of(dev, ino, i);
        if (!(__atomic_load_n(&locked[bit / 64], __ATOMIC_SEQ_CST) >> (bit % 64) & 1))
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
        __atomic_fetch_or(&locked[bit / 64], 1ULL << (bit % 64), __ATOMIC_SEQ_CST);
    }
    monarch_track_wait_for_all();
}

int monarch_is_still(int fd, const struct session *s, const struct monarch_entry *e) {
    uint64_t dev = s->control->source[e->source].dev;
    struct statx x;
    if (sys6(SYS_statx, fd, (long)"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO,
             (long)&x, 0) == 0)
        return S_ISREG(x.stx_mode) && x.stx_ino == e->ino &&
               makedev(x.stx_dev_major, x.stx_dev_minor) == dev;
    struct stat st; /* before Linux 4.11 */
    return sys_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_ino == e->ino &&
           st.st_dev == dev;
}

/* An offset that has moved was moved by a call that we do not see: it stays where it is. */
static int may_be_replaced(int fd, const struct monarch_wanted *w) {
    return monarch_is_still(fd, w->session, w->entry) &&
           !monarch_has_locks(w->session->control->source[w->entry->source].dev, w->entry->ino) &&
           sys_lseek(fd, 0, SEEK_CUR) == 0;
}

int monarch_promote(int fd, uint64_t tracked, const struct monarch_wanted *w) {
    uint64_t word = monarch_word_of(w);
    char path[MONARCH_COPY_PATH];
    struct monarch_held held;
    if (!tracked || tracked & (TRACK_OFFSET | TRACK_SHARED | TRACK_HELD) ||
        MONARCH_WORD_STATE(word) != MONARCH_PRESENT || !monarch_track_is_own(tracked))
        return 0;
    int flags = sys_fcntl(fd, F_GETFL, 0), done = 0;
    monarch_copy_path(&w->session->control->tier[MONARCH_WORD_TIER(word)], MONARCH_WORD_COPY(word),
                      path);
    int copy = flags < 0
                   ? -1
                   : sys_openat(AT_FDCWD, path,
                                (flags & (O_NONBLOCK | O_LARGEFILE | O_NOFOLLOW)) | O_CLOEXEC);
    if (copy < 0)
        return 0;
    /* close, dup2 and the like were there before, and this fails, or they wait. */
    if (monarch_track_hold(fd, tracked, &held)) {
        int fd_flags = sys_fcntl(fd, F_GETFD, 0);
        done = fd_flags >= 0 && may_be_replaced(fd, w) &&
               sys6(SYS_dup3, copy, fd, fd_flags & FD_CLOEXEC ? O_CLOEXEC : 0, 0, 0, 0) == fd;
        monarch_track_release(fd, &held, done ? 0 : held.word | TRACK_SHARED);
    }
    sys_close(copy);
    if (done)
        monarch_log("promoted to", path, NULL);
    if (done)
        __atomic_fetch_add(&monarch_my_stats(w->session)->promotions, 1, __ATOMIC_RELAXED);
    return done;
}
