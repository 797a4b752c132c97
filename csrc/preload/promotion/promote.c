#include "preload/promotion/promote.h"

#include <sys/sysmacros.h>

#include "preload/descriptors/locked_files.h"
#include "preload/descriptors/track.h"
#include "preload/fill/handover.h"
#include "preload/fill/serve.h"
#include "preload/process/attributes.h"
#include "preload/process/log.h"
#include "preload/process/momentary.h"
#include "preload/session/copies.h"
#include "shared/sys.h"

/* Each slot names a file of which a descriptor is being replaced. At a replacement, the kernel
 * closes the old open file, and thereby releases the process's POSIX locks on the file. So a
 * thread that is about to lock the file waits until the close has ended. The close may take a long
 * time, because some file systems contact their server at each close (flush).
 *
 * A slot contains the process's pid in its highest 24 bits, and a hash of the file in the other 40
 * bits. A slot is free if it is 0, or if it contains another pid. (A forked child inherits its
 * parent's slots, but the parent's replacements do not concern the child.) */
#define CLOSINGS 16
#define CLOSING_LIMIT_NS 5000000000ULL
static uint64_t closings[CLOSINGS] SELDOM;

static uint64_t closing_of(uint64_t dev, uint64_t ino) {
    return (uint64_t)monarch_track_process() << 40 | monarch_mix(ino ^ monarch_mix(dev)) >> 24;
}

/* Stores `mark` in a free slot, and returns the slot. Returns NULL if all slots are in use. */
static uint64_t *begin_closing(uint64_t mark) {
    for (int i = 0; i < CLOSINGS; i++) {
        uint64_t w = __atomic_load_n(&closings[i], __ATOMIC_SEQ_CST);
        if ((!w || w >> 40 != mark >> 40) &&
            __atomic_compare_exchange_n(&closings[i], &w, mark, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
            return &closings[i];
    }
    return NULL;
}

static int wait_for_closings(uint64_t dev, uint64_t ino) {
    uint64_t mark = closing_of(dev, ino), until_ns = 0;
    for (int i = 0; i < CLOSINGS; i++)
        for (unsigned n = 0; __atomic_load_n(&closings[i], __ATOMIC_SEQ_CST) == mark;) {
            uint64_t now = monarch_now_ns();
            until_ns = until_ns ? until_ns : now + CLOSING_LIMIT_NS;
            if (now > until_ns)
                return 0;
            sys_relax(n++);
        }
    return 1;
}

int monarch_keep_locks(int fd) {
    struct stat st;
    if (!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE) || sys_fstat(fd, &st) != 0 ||
        !S_ISREG(st.st_mode))
        return 1;
    monarch_note_locks(st.st_dev, st.st_ino);
    monarch_keep_descriptor(fd);
    return wait_for_closings(st.st_dev, st.st_ino);
}

void monarch_compare_source(int fd) {
    uint64_t w = monarch_tracked(fd);
    struct session *s = w ? monarch_track_session(w) : NULL;
    const struct monarch_entry *e =
        s && s->clients ? monarch_entry_of(s, monarch_track_entry(w)) : NULL;
    struct stat now;
    if (!e || sys_fstat(fd, &now) != 0)
        return;
    if (now.st_ino == e->ino && now.st_dev == s->control->source[e->source].dev &&
        !monarch_is_as_scanned(s, e, &now))
        monarch_mark_changed(s->clients, now.st_dev, now.st_ino);
}

static int is_inode(int fd, uint64_t dev, uint64_t ino) {
    struct statx x;
    if (sys6(SYS_statx, fd, (long)"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO,
             (long)&x, 0) == 0)
        return S_ISREG(x.stx_mode) && x.stx_ino == ino &&
               makedev(x.stx_dev_major, x.stx_dev_minor) == dev;
    struct stat st; /* before Linux 4.11 */
    return sys_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_ino == ino && st.st_dev == dev;
}

int monarch_is_still(int fd, const struct session *s, const struct monarch_entry *e) {
    return is_inode(fd, s->control->source[e->source].dev, e->ino);
}

int monarch_is_callers(int fd, const struct monarch_wanted *w) {
    return is_inode(fd, w->session->control->source[w->entry->source].dev, w->ino);
}

/* Replaces the descriptor, which the caller has pinned. Returns whether the descriptor refers to
 * the copy now. */
static int replace(int fd, int copy, const struct monarch_wanted *w) {
    uint64_t dev = w->session->control->source[w->entry->source].dev;
    int fd_flags = sys_fcntl(fd, F_GETFD, 0), done = 0;
    uint64_t *closing = fd_flags < 0 ? NULL : begin_closing(closing_of(dev, w->ino));
    if (!closing)
        return 0;
    if (!monarch_is_replaced(w) && monarch_is_callers(fd, w) && !monarch_has_locks(dev, w->ino))
        done = sys6(SYS_dup3, copy, fd, fd_flags & FD_CLOEXEC ? O_CLOEXEC : 0, 0, 0, 0) == fd;
    __atomic_store_n(closing, 0, __ATOMIC_SEQ_CST);
    return done;
}

int monarch_promote(int fd, uint64_t tracked, const struct monarch_wanted *w) {
    uint64_t word = monarch_word_of(w);
    char path[MONARCH_COPY_PATH];
    struct monarch_pin pin;
    /* If the descriptor's offset is not 0, a call that the library did not see has moved it. The
     * program then relies on the offset, so the descriptor is not promoted. The offset is read
     * before the pin, because lseek may have to wait for reads of other threads. */
    if (!tracked || tracked & (TRACK_OFFSET | TRACK_SHARED | TRACK_PINNED) ||
        MONARCH_WORD_STATE(word) != MONARCH_PRESENT || !monarch_track_is_mine() ||
        monarch_tracked(fd) != tracked || sys_lseek(fd, 0, SEEK_CUR) != 0)
        return 0;
    int flags = sys_fcntl(fd, F_GETFL, 0), done = 0;
    monarch_copy_path(w->session, word, path);
    monarch_momentary_begin();
    int kept = monarch_copy_flags(flags & (O_NONBLOCK | O_LARGEFILE | O_NOFOLLOW));
    int copy = flags < 0 ? -1 : sys_openat(AT_FDCWD, path, kept | O_CLOEXEC);
    /* While the descriptor is pinned, a thread that is about to close or replace it waits for the
     * end of this promotion. If another thread has closed or replaced the descriptor already, the
     * pin fails. */
    if (copy >= 0 && monarch_track_pin(fd, tracked, &pin)) {
        done = replace(fd, copy, w);
        monarch_track_unpin(fd, &pin, done ? 0 : pin.word | TRACK_SHARED);
    }
    if (copy >= 0)
        sys_close(copy);
    monarch_momentary_end();
    if (done)
        monarch_log("replaced a descriptor by the copy", path, NULL);
    if (done)
        __atomic_fetch_add(&monarch_my_stats(w->session)->promotions, 1, __ATOMIC_RELAXED);
    return done;
}
