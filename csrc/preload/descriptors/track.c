#include "preload/descriptors/track.h"

#include <signal.h>
#include <sys/sysmacros.h>

#include "preload/process/attributes.h"
#include "preload/process/momentary.h"
#include "preload/process/proc.h"
#include "shared/sys.h"

uint64_t monarch_track_table[MONARCH_TRACKED] SELDOM;
static unsigned highest; /* no descriptor with a number above this one was ever tracked */

/* --- the process that the table describes --------------------------------------------------------
 * A child of vfork runs in its parent's memory, but has descriptors of its own. The table describes
 * the parent's descriptors. So the table must not change when the child closes or duplicates one of
 * its own descriptors. */

static uint32_t owner; /* atomic: pid of the process whose descriptors the table describes */
/* A page that tells a process whether it is the child of a fork that the library did not see. The
 * kernel fills the page with zeros in every forked child, but not in a child of vfork. */
static uint32_t *forked_mark;

void monarch_track_mark(void) {
    uint32_t *none = NULL, *page;
    if (__atomic_load_n(&forked_mark, __ATOMIC_ACQUIRE) || !(page = sys_new_wiped_page()))
        return;
    *page = 1;
    if (!__atomic_compare_exchange_n(&forked_mark, &none, page, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        sys_unmap(page, 4096);
}

static int is_unseen_child(void) {
    const uint32_t *mark = __atomic_load_n(&forked_mark, __ATOMIC_ACQUIRE);
    return mark && !__atomic_load_n(mark, __ATOMIC_RELAXED);
}

/* A child of vfork shares all memory with its parent. So only a system call shows in which of the
 * two processes this function runs. */
int monarch_track_is_mine(void) {
    uint32_t pid = (uint32_t)sys_getpid(), known = __atomic_load_n(&owner, __ATOMIC_ACQUIRE);
    if (known == pid)
        return 1;
    if (known && !is_unseen_child())
        return 0;
    monarch_track_adopt();
    return 1;
}

static int change(int fd, uint64_t *seen, uint64_t to) {
    return __atomic_compare_exchange_n(&monarch_track_table[fd], seen, to, 0, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
}

int monarch_track_change(int fd, uint64_t seen, uint64_t to) {
    return !(seen & TRACK_PINNED) && change(fd, &seen, to);
}

/* Adapts the inherited table in the child of a fork. The child shares the offsets of all open files
 * with its parent, so all tracked descriptors are marked as shared. TRACK_PINNED and TRACK_SEEKING
 * are cleared, because the threads that have set these flags exist only in the parent. */
static void inherit(void) {
    unsigned end = __atomic_load_n(&highest, __ATOMIC_RELAXED);
    for (unsigned fd = 0; fd <= end; fd++) {
        uint64_t w = monarch_tracked((int)fd);
        while (w && !change((int)fd, &w,
                            (w & ~(TRACK_PINNED | TRACK_SEEKING)) | TRACK_SHARED | TRACK_FORKED))
            ;
    }
}

void monarch_track_adopt(void) {
    uint32_t *mark = __atomic_load_n(&forked_mark, __ATOMIC_ACQUIRE), pid = (uint32_t)sys_getpid();
    uint32_t before = __atomic_load_n(&owner, __ATOMIC_ACQUIRE);
    if (before && before != pid) {
        inherit();
        monarch_momentary_forget();
    }
    __atomic_store_n(&owner, pid, __ATOMIC_RELEASE);
    if (mark)
        __atomic_store_n(mark, 1, __ATOMIC_RELEASE);
}

uint32_t monarch_track_process(void) {
    if (__builtin_expect(is_unseen_child(), 0))
        monarch_track_adopt();
    return __atomic_load_n(&owner, __ATOMIC_ACQUIRE);
}

/* --- the words -------------------------------------------------------------------------------- */

/* Number of tracked opens so far. A descriptor's word contains the number of the descriptor's open,
 * so two opens of the same file have different words. */
static uint32_t opens;

void monarch_track(struct session *s, int fd, uint64_t entry, uint64_t flags) {
    if ((unsigned)fd >= MONARCH_TRACKED || !monarch_fills_of(s))
        return;
    monarch_track_mark();
    /* If the parent tracks no descriptor with the number `fd`, a child of vfork may put a word with
     * TRACK_DIRECT into the parent's table. That does no harm: the parent's reads still go to the
     * kernel. At a handover, the daemon checks to which file the descriptor refers. */
    int needs_owner = !(flags & TRACK_DIRECT) || monarch_tracked(fd) || !monarch_track_process();
    if (needs_owner && !monarch_track_is_mine())
        return;
    uint64_t number = __atomic_fetch_add(&opens, 1, __ATOMIC_RELAXED) & 0x7FFFFF;
    unsigned seen = __atomic_load_n(&highest, __ATOMIC_RELAXED);
    while ((unsigned)fd > seen && !__atomic_compare_exchange_n(&highest, &seen, (unsigned)fd, 0,
                                                               __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    __atomic_store_n(&monarch_track_table[fd],
                     (uint64_t)s->number << 4 | number << 9 | (entry + 1) << 32 | flags,
                     __ATOMIC_SEQ_CST);
}

/* Returns whether `fd` now refers to the copy. w: the descriptor's word. Does not wait for the
 * server of a network file system. */
static int is_of_copy(int fd, uint64_t w) {
    const struct session *s = monarch_track_session(w);
    struct statx x;
    if (sys6(SYS_statx, fd, (long)"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, (long)&x, 0))
        return 0;
    uint64_t dev = makedev(x.stx_dev_major, x.stx_dev_minor), id = monarch_track_entry(w);
    const struct monarch_catalog *c = __atomic_load_n(&s->catalog, __ATOMIC_ACQUIRE);
    if (monarch_tier_on(s, dev, 0) < 0 || !c || id >= c->capacity)
        return 0;
    const struct monarch_entry *e = &monarch_entries(c)[id];
    return s->control->source[e->source].dev != dev || e->ino != x.stx_ino;
}

/* Call this in a loop that waits until a descriptor is unpinned. w: the descriptor's word. n: the
 * number of earlier calls in this loop. Usually only pauses. Returns the descriptor's current word.
 *
 * A promotion pins the descriptor, and makes it refer to the copy. The kernel then closes the
 * source's file, which may take long. Other threads need not wait for that. So if the descriptor
 * already refers to the copy, this function clears the word, which ends the wait. */
static uint64_t wait_while_pinned(int fd, uint64_t w, unsigned n) {
    if (n >= 40 && n % 8 == 0 && is_of_copy(fd, w))
        change(fd, &w, 0);
    else
        sys_relax(n);
    return monarch_tracked(fd);
}

void monarch_track_flag_slow(int fd, uint64_t flag) {
    /* Usually, this check does not distinguish a child of vfork from its parent, because that would
     * need a system call. If a child of vfork sets a flag, the parent suffers no harm. */
    if (__atomic_load_n(&forked_mark, __ATOMIC_ACQUIRE) ? !monarch_track_process()
                                                        : !monarch_track_is_mine())
        return;
    uint64_t w = monarch_tracked(fd);
    for (unsigned n = 0; w && (w & TRACK_PINNED || (w & flag) != flag);) {
        if (w & TRACK_PINNED) {
            w = wait_while_pinned(fd, w, n++);
        } else if (change(fd, &w, w | flag)) {
            return;
        }
    }
}

void monarch_track_again(int fd, int fresh) {
    uint64_t w = monarch_tracked(fd);
    struct session *s = w ? monarch_track_session(w) : NULL;
    /* If `fd` was tracked in an earlier session, `s` is monarch_waiting, which has no `clients`.
     * The duplicate is then not tracked, because the earlier session's entry numbers are not valid
     * in the current session. */
    if (s && s->clients && (unsigned)fresh < MONARCH_TRACKED &&
        !(w & TRACK_HANDED && monarch_is_unmet(monarch_track_entry(w)))) {
        monarch_track(s, fresh, monarch_track_entry(w), w & TRACK_HANDED ? 0 : w & TRACK_DIRECT);
        monarch_track_flag(fresh, TRACK_SHARED);
    }
}

/* Returns the part of the word that stays the same during a seek. The seeking thread passes this
 * value to lseek as a fourth argument. lseek ignores it, but /proc shows it, so other threads can
 * recognize the call. */
static uint64_t seek_of(uint64_t w) { return (w & ~TRACK_FLAGS) | TRACK_SEEKING; }

/* Limits how long a close waits for threads that seek on its descriptor. Unit: rounds of sys_relax;
 * this many take less than a second. Usually, the close waits until /proc shows that the seeks are
 * inside the kernel. If /proc cannot be read, the close only waits for this number of rounds. That
 * happens if no descriptor is free, or if the process is not dumpable. A limit in seconds would be
 * wrong, because time also passes while a process is stopped. */
#define ENTERED_ROUNDS 800

/* Returns whether the seeking thread's lseek is inside the kernel. The kernel then holds a
 * reference to the open file, so the descriptor may be closed. n: rounds so far for this
 * descriptor. The first rounds do not look into /proc, because lseek usually returns at once.
 * in_all: rounds so far for all descriptors of the same call. */
static int has_entered(int fd, uint64_t w, unsigned n, unsigned in_all) {
    return n >= 40 && n % 8 == 0 &&
           (in_all >= ENTERED_ROUNDS || monarch_sleeps_in(SYS_lseek, (uint64_t)fd, seek_of(w)));
}

/* Removes the descriptor's word. First waits for threads that have pinned the descriptor, and for
 * threads that seek on it. Adds the rounds of the wait for seeking threads to *in_all. */
static void untrack(int fd, unsigned *in_all) {
    uint64_t w = monarch_tracked(fd);
    for (unsigned n = 0, pinned = 0; w;) {
        if (w & TRACK_PINNED) {
            w = wait_while_pinned(fd, w, pinned++);
        } else if (w & TRACK_SEEKING && !has_entered(fd, w, n, *in_all)) {
            sys_relax(n++);
            ++*in_all;
            w = monarch_tracked(fd);
        } else if (change(fd, &w, 0)) {
            return;
        }
    }
}

void monarch_untrack_slow(int fd) {
    unsigned in_all = 0;
    uint64_t w = monarch_tracked(fd);
    /* A child of vfork may reach this point too. It then removes a word from its parent's table.
     * That does no harm: the descriptor was handed over already, so the parent no longer needs the
     * word. */
    if (w & TRACK_HANDED && !(w & (TRACK_PINNED | TRACK_SEEKING)) && change(fd, &w, 0))
        return;
    if (monarch_track_is_mine())
        untrack(fd, &in_all);
}

void monarch_untrack_range(unsigned first, unsigned last) {
    unsigned end = __atomic_load_n(&highest, __ATOMIC_RELAXED), in_all = 0;
    for (unsigned fd = first; fd <= last && fd <= end; fd++)
        if (monarch_tracked((int)fd) && monarch_track_is_mine())
            untrack((int)fd, &in_all);
}

void monarch_untrack_seen(int fd, uint64_t seen) {
    if (!(seen & (TRACK_PINNED | TRACK_SEEKING)) && monarch_track_is_mine())
        change(fd, &seen, 0);
}

void monarch_untrack_session(unsigned number) {
    unsigned end = __atomic_load_n(&highest, __ATOMIC_RELAXED);
    for (unsigned fd = 0; fd <= end; fd++) {
        uint64_t w = monarch_tracked((int)fd);
        while (w && (w >> 4 & 31) == number && !(w & (TRACK_PINNED | TRACK_SEEKING)) &&
               !change((int)fd, &w, 0))
            ;
    }
}

void monarch_track_share_all(void) {
    unsigned end = __atomic_load_n(&highest, __ATOMIC_RELAXED);
    for (unsigned fd = 0; fd <= end; fd++)
        monarch_track_flag((int)fd, TRACK_SHARED | TRACK_FORKED);
}

/* --- pinning ---------------------------------------------------------------------------------- */

/* Returns whether the descriptor is never promoted (made to refer to the copy). If so, it need not
 * be pinned. */
static int is_kept(uint64_t w) { return (w & (TRACK_OFFSET | TRACK_SHARED)) != 0; }

int monarch_track_pin(int fd, uint64_t expected, struct monarch_pin *pin) {
    if (!monarch_tracked(fd) || !monarch_track_is_mine())
        return 0;
    pin->signals = sys_signals(SIG_BLOCK, ~0ULL);
    uint64_t w = monarch_tracked(fd);
    for (unsigned n = 0; w && !is_kept(w) && (!expected || w == expected);) {
        if (w & TRACK_PINNED) {
            w = wait_while_pinned(fd, w, n++);
        } else if (change(fd, &w, w | TRACK_PINNED)) {
            pin->word = w;
            return 1;
        }
    }
    sys_signals(SIG_SETMASK, pin->signals);
    return 0;
}

void monarch_track_unpin(int fd, const struct monarch_pin *pin, uint64_t word) {
    /* Since the pinning, a call that the library did not see may have closed the descriptor, and
     * another file may have got its number. So the word is replaced only if it is still the word
     * that this thread has pinned. */
    uint64_t seen = pin->word | TRACK_PINNED;
    change(fd, &seen, word);
    sys_signals(SIG_SETMASK, pin->signals);
}

/* --- seeking -------------------------------------------------------------------------------------
 * The kernel makes lseek wait while another thread reads from the open file. That read may take as
 * long as the source takes, and a descriptor cannot stay pinned for so long. But between the check
 * of the descriptor's word and the call of lseek, another file must not get the descriptor number.
 * Otherwise, lseek would move that file's offset. So the word is marked (TRACK_SEEKING) until lseek
 * returns. A thread that wants to close the descriptor waits until the mark is gone. If the mark
 * stays, the closing thread checks in /proc whether the lseek is inside the kernel. If it is, the
 * descriptor may be closed.
 *
 * A seek on a duplicate of the descriptor would need no mark. But the library would then have to
 * close the duplicate, and this close may have to wait for the source. */

#define SEEK_ROUNDS 64

static int begin_seek(int fd, uint64_t *w) {
    return !(*w & (TRACK_PINNED | TRACK_SEEKING)) &&
           change(fd, w, *w | TRACK_SEEKING | TRACK_OFFSET);
}

static void end_seek(int fd, uint64_t seek) {
    uint64_t w = monarch_tracked(fd);
    while (w && seek_of(w) == seek && w & TRACK_SEEKING && !change(fd, &w, w & ~TRACK_SEEKING))
        ;
}

/* Blocks signals, because a signal handler that closes the descriptor would wait for the thread
 * that it has interrupted. The block has no cost: lseek waits in the kernel even if a signal
 * arrives. */
long monarch_track_seek(int fd, uint64_t tracked, long by) {
    if (!monarch_track_is_mine())
        return -1;
    for (unsigned n = 0; n < SEEK_ROUNDS; sys_relax(n++)) {
        uint64_t w = monarch_tracked(fd);
        if ((w ^ tracked) & ~TRACK_FLAGS)
            return -1;
        uint64_t signals = sys_signals(SIG_BLOCK, ~0ULL);
        int begins = begin_seek(fd, &w);
        /* lseek ignores the fourth argument. By this argument, other threads recognize the call in
         * /proc. */
        long at = begins ? sys6(SYS_lseek, fd, by, SEEK_CUR, (long)seek_of(w), 0, 0) : -1;
        if (begins)
            end_seek(fd, seek_of(w));
        sys_signals(SIG_SETMASK, signals);
        if (begins)
            return at < 0 ? -1 : at;
    }
    return -1;
}
