/* The table of mappings that wait for their copies, and its lock.
 *
 * The lock is held for a look at the table and nothing else, with all signals blocked, so that no
 * handler runs, and none jumps away, while it is held. A replacement takes longer and holds no
 * lock: its slot is REPLACING, and only who is about to change that very range waits for it. What
 * belongs to this process alone (the lock, the thread) lies on a page that the kernel clears in the
 * child of a fork, by whatever call that is made, and shares with the child of a vfork. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/auxv.h>

#include "preload/mappings/mapping_table.h"
#include "preload/process/calls.h"

/* Whoever holds the lock so long is no more: a vfork's child that was killed [ns]. */
#define LOCK_NS 1000000000ULL
#define NAP_NS 50000L
#define END_NS 500000000ULL
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* Of the page that is cleared; the kernel makes it a whole one [bytes]. */
#define OWN_BYTES 4096UL

uint32_t monarch_mappings_waiting;
struct slot monarch_slots[SLOTS] SELDOM;
static uint32_t edits; /* atomic; odd while the table is being changed */
static uint32_t next_number;
static struct own *own;   /* atomic; NULL until the first mapping */
static uint32_t given_up; /* atomic: the lock is lost, and nothing is ever replaced again */
static uint32_t refused;  /* atomic: all memory is locked */

static void nap(long ns) {
    struct timespec t = {0, ns};
    sys6(SYS_nanosleep, (long)&t, 0, 0, 0, 0, 0);
}

/* --- the lock -------------------------------------------------------------------------------- */

static void begin_edit(void) { __atomic_fetch_add(&edits, 1, __ATOMIC_ACQ_REL); }
static void end_edit(void) { __atomic_fetch_add(&edits, 1, __ATOMIC_RELEASE); }

void monarch_slots_recount(void) {
    uint32_t n = 0;
    for (int i = 0; i < SLOTS; i++)
        n += GET(monarch_slots[i].state) != FREE;
    __atomic_store_n(&monarch_mappings_waiting, GET(given_up) ? 0 : n, __ATOMIC_RELEASE);
}

/* [adopt] In the child of a fork. Another thread of the parent may have been changing the table
 * just then: nobody knows how far it had come. A replacement goes on in the parent alone, before
 * this process was made or after it: whoever replaces looks first at what is there. */
static void adopt(struct own *o) {
    int is_whole = !(GET(edits) & 1);
    for (int i = 0; i < SLOTS; i++)
        if (!is_whole)
            SET(monarch_slots[i].state, FREE);
        else if (GET(monarch_slots[i].state) == REPLACING)
            SET(monarch_slots[i].state, WAITING);
    if (!is_whole)
        __atomic_fetch_add(&edits, 1, __ATOMIC_RELEASE);
    monarch_slots_recount();
    o->pid = (uint32_t)sys_getpid();
}

int monarch_slots_lock(struct own *o) {
    uint64_t start = 0;
    uint32_t expected = 0;
    for (unsigned i = 0; !GET(given_up); i++, expected = 0) {
        if (__atomic_compare_exchange_n(&o->lock, &expected, 1, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED)) {
            if (!o->pid)
                adopt(o);
            return 1;
        }
        if (i < 32)
            sys6(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
        else if (!start)
            start = sys_now_ns();
        else if (sys_now_ns() - start > LOCK_NS)
            __atomic_store_n(&given_up, 1, __ATOMIC_SEQ_CST);
        else
            nap(NAP_NS);
    }
    return 0;
}

void monarch_slots_unlock(struct own *o) { __atomic_store_n(&o->lock, 0, __ATOMIC_SEQ_CST); }

int monarch_slots_are_lost(void) { return (int)__atomic_load_n(&given_up, __ATOMIC_SEQ_CST); }

/* --- the table ------------------------------------------------------------------------------- */

void monarch_slot_free(struct slot *s) {
    begin_edit();
    SET(s->state, FREE);
    end_edit();
    monarch_slots_recount();
}

/* The lock is held, an edit has begun. */
static struct slot *put(const struct slot *what) {
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &monarch_slots[i];
        if (__atomic_load_n(&s->state, __ATOMIC_ACQUIRE) != FREE)
            continue;
        s->number = ++next_number;
        SET(s->begin, what->begin);
        SET(s->end, what->end);
        s->offset = what->offset;
        s->id = what->id;
        s->version = what->version;
        s->session = what->session;
        s->file = what->file;
        s->flags = what->flags;
        s->advice = what->advice;
        s->tries = 0;
        SET(s->state, WAITING);
        return s;
    }
    return NULL;
}

/* [say] What of the slot lies outside [begin, end) waits on in slots of its own; if there is none,
 * it stays on the source. */
static void carve(struct slot *s, uint64_t begin, uint64_t end, int what) {
    struct slot piece = *s;
    s->number = ++next_number;
    if (what == MONARCH_FORGET)
        SET(s->state, FREE);
    else
        s->advice = what;
    if (begin > piece.begin) {
        SET(s->begin, begin);
        s->offset += begin - piece.begin;
    }
    if (end < piece.end)
        SET(s->end, end);
    struct slot left = piece, right = piece;
    left.end = begin;
    right.begin = end;
    right.offset += end - piece.begin;
    if (begin > piece.begin)
        put(&left);
    if (end < piece.end)
        put(&right);
}

static int is_in(const struct slot *s, uint64_t begin, uint64_t end) {
    return __atomic_load_n(&s->state, __ATOMIC_ACQUIRE) != FREE && GET(s->begin) < end &&
           begin < GET(s->end);
}

/* [quiet] Whether nothing waits in the range, without the lock: then it is somebody else's mapping.
 */
static int is_quiet(uint64_t begin, uint64_t end) {
    uint32_t seen = __atomic_load_n(&edits, __ATOMIC_ACQUIRE);
    if (seen & 1)
        return 0;
    for (int i = 0; i < SLOTS; i++)
        if (is_in(&monarch_slots[i], begin, end))
            return 0;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return GET(edits) == seen;
}

/* Whether a replacement is under way in the range. */
static int is_busy(uint64_t begin, uint64_t end) {
    for (int i = 0; i < SLOTS; i++)
        if (is_in(&monarch_slots[i], begin, end) &&
            __atomic_load_n(&monarch_slots[i].state, __ATOMIC_SEQ_CST) == REPLACING)
            return 1;
    return 0;
}

/* [busy] [carve] [put] [end_edit]; [lost] if there is no lock. 0: to be tried again. */
static int say_locked(struct own *o, uint64_t begin, uint64_t end, int what) {
    uint64_t set = sys_signals(SIG_BLOCK, MOST_SIGNALS);
    if (monarch_slots_lock(o)) {
        int busy = is_busy(begin, end);
        begin_edit();
        for (int i = 0; !busy && i < SLOTS; i++)
            if (is_in(&monarch_slots[i], begin, end) &&
                !(what != MONARCH_FORGET && monarch_slots[i].advice == what))
                carve(&monarch_slots[i],
                      begin > monarch_slots[i].begin ? begin : monarch_slots[i].begin,
                      end < monarch_slots[i].end ? end : monarch_slots[i].end, what);
        end_edit();
        monarch_slots_recount();
        monarch_slots_unlock(o);
        sys_signals(SIG_SETMASK, set);
        return !busy;
    }
    /* Nobody begins a replacement any more; one that has begun must end. */
    int busy = is_busy(begin, end);
    if (!is_busy(0, UINT64_MAX))
        __atomic_store_n(&monarch_mappings_waiting, 0, __ATOMIC_RELEASE);
    sys_signals(SIG_SETMASK, set);
    return !busy;
}

/* The kernel rounds to whole pages; of 64 KiB on some machines. */
static uint64_t begin_of(const void *at) { return (uint64_t)at & ~(getauxval(AT_PAGESZ) - 1); }
static uint64_t end_of(const void *at, uint64_t n) {
    uint64_t page = getauxval(AT_PAGESZ), end = (uint64_t)at + n;
    return end < n || end > UINT64_MAX - page ? UINT64_MAX : (end + page - 1) & ~(page - 1);
}

void monarch_mappings_say_slow(const void *at, uint64_t n, int what) {
    struct own *o = __atomic_load_n(&own, __ATOMIC_ACQUIRE);
    uint64_t begin = begin_of(at), end = end_of(at, n);
    /* The thread is in one system call, and holds no lock: its end is as near as the kernel's own
     * lock of the address space, which our caller is about to ask for. */
    while (o && !is_quiet(begin, end) && !say_locked(o, begin, end, what))
        nap(NAP_NS);
}

void monarch_mappings_refuse(int refuse) {
    __atomic_store_n(&refused, (uint32_t)refuse, __ATOMIC_SEQ_CST);
    if (refuse)
        monarch_mappings_say(NULL, UINT64_MAX, MONARCH_FORGET);
}

/* [start] Signals are blocked. Nobody can promote without the thread: then nothing waits. */
static void start(struct own *o) {
    int old_errno = errno;
    if (!monarch_slots_lock(o))
        return;
    int needed =
        GET(monarch_mappings_waiting) && !GET(o->helper) && o->pid == (uint32_t)sys_getpid();
    if (needed)
        SET(o->helper, 1);
    monarch_slots_unlock(o);
    if (needed && !monarch_start_mover(o) && monarch_slots_lock(o)) {
        SET(o->helper, 0);
        for (int i = 0; i < SLOTS; i++)
            monarch_slot_free(&monarch_slots[i]);
        monarch_slots_unlock(o);
    }
    errno = old_errno;
}

/* --- what the interposed calls tell ----------------------------------------------------------- */

static struct own *own_page(void) {
    struct own *o = __atomic_load_n(&own, __ATOMIC_ACQUIRE), *none = NULL;
    if (o)
        return o;
    long p = sys6(SYS_mmap, 0, (long)OWN_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                  -1, 0);
    if (!is_address(p))
        return NULL;
    o = (struct own *)p;
    o->pid = (uint32_t)sys_getpid();
    /* Before Linux 4.14 there is none: no thread could tell a fork's child from its parent. */
    if (sys6(SYS_madvise, p, (long)OWN_BYTES, MADV_WIPEONFORK, 0, 0, 0) == 0 &&
        __atomic_compare_exchange_n(&own, &none, o, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return o;
    sys_unmap(o, OWN_BYTES);
    return none;
}

int monarch_mapping_can_wait(int prot, int flags) {
    /* One that was ever writable may hold pages of its own; locked pages must stay in memory. */
    return prot == PROT_READ && !(flags & (MAP_LOCKED | MAP_GROWSDOWN | MAP_HUGETLB | MAP_SYNC)) &&
           !__atomic_load_n(&refused, __ATOMIC_RELAXED);
}

void monarch_mapping_add(const struct monarch_wanted *w, void *at, uint64_t n, int flags,
                         uint64_t offset) {
    struct own *o = own_page();
    struct slot s = {.begin = (uint64_t)at,
                     .end = end_of(at, n),
                     .offset = offset,
                     .id = w->id,
                     .version = w->version,
                     .session = w->session,
                     .flags = flags};
    if (!o || GET(given_up) || !monarch_mapped_file(s.begin, &s.file))
        return;
    uint64_t set = sys_signals(SIG_BLOCK, MOST_SIGNALS);
    /* The child of a vfork shares our memory, and its threads would end with it. */
    int is_ours = 0;
    if (monarch_slots_lock(o) && !(is_ours = o->pid == (uint32_t)sys_getpid()))
        monarch_slots_unlock(o);
    if (is_ours) {
        begin_edit();
        put(&s);
        end_edit();
        monarch_slots_recount();
        monarch_slots_unlock(o);
        start(o);
    }
    /* All memory may have been locked since we asked. */
    if (__atomic_load_n(&refused, __ATOMIC_SEQ_CST))
        monarch_mappings_say(NULL, UINT64_MAX, MONARCH_FORGET);
    sys_signals(SIG_SETMASK, set);
}

void monarch_mappings_after_fork(void) {
    struct own *o = __atomic_load_n(&own, __ATOMIC_ACQUIRE);
    /* ThreadSanitizer ends a program that starts a thread in the child of one with threads. */
    if (REAL(__tsan_init))
        __atomic_store_n(&given_up, 1, __ATOMIC_SEQ_CST);
    if (!o || !monarch_mappings_exist())
        return;
    uint64_t set = sys_signals(SIG_BLOCK, MOST_SIGNALS);
    start(o);
    sys_signals(SIG_SETMASK, set);
}

void monarch_mappings_end(void) {
    struct own *o = __atomic_load_n(&own, __ATOMIC_ACQUIRE);
    if (!o)
        return;
    monarch_mappings_say(NULL, UINT64_MAX, MONARCH_FORGET);
    __atomic_fetch_add(&o->bell, 1, __ATOMIC_SEQ_CST);
    sys_futex_wake(&o->bell);
    uint64_t start = sys_now_ns();
    while ((GET(o->helper) ||
            (GET(o->tid) && sys6(SYS_tgkill, sys_getpid(), GET(o->tid), 0, 0, 0, 0) == 0)) &&
           sys_now_ns() - start < END_NS)
        nap(NAP_NS);
}
