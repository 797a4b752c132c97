/* Adds mappings to the table of mappings that wait for copies, and records how the program changes
 * them.
 *
 * struct own has the state that a forked child must not inherit: the table's lock, and the state
 * of the thread of move.c. The structure is on a page of its own, which the kernel clears in every
 * forked child. But a child of vfork shares the page with its parent. */
#include "preload/mappings/mappings.h"

#include <errno.h>
#include <sys/auxv.h>

#include "preload/mappings/move.h"
#include "preload/process/calls.h"

#define NAP_NS 50000L
#define END_NS 500000000ULL
static struct own *own;  /* atomic; NULL until the first mapping is added */
static uint32_t refused; /* atomic; 1: no mapping is added, because all memory is locked */

/* The next two functions return the beginning and the end of a range, rounded to whole pages as
 * the kernel rounds them. Some machines have pages of 64 KiB, so the kernel is asked for the page
 * size. */
static uint64_t begin_of(const void *at) { return (uint64_t)at & ~(getauxval(AT_PAGESZ) - 1); }
static uint64_t end_of(const void *at, uint64_t n) {
    uint64_t page = getauxval(AT_PAGESZ), end = (uint64_t)at + n;
    return end < n || end > UINT64_MAX - page ? UINT64_MAX : (end + page - 1) & ~(page - 1);
}

void monarch_mappings_say_slow(const void *at, uint64_t n, int what) {
    struct own *o = __atomic_load_n(&own, __ATOMIC_ACQUIRE);
    uint64_t begin = begin_of(at), end = end_of(at, n);
    /* If the thread of move.c is replacing a mapping in the range, waits until it has finished. A
     * replacement consists of a few system calls, and the kernel locks the address space during
     * most of them. The program's own call would have to wait for that lock anyway, so this wait
     * costs hardly any extra time. */
    while (o && !monarch_slots_are_quiet(begin, end) && !monarch_slots_say(o, begin, end, what))
        sys_nap(NAP_NS);
}

void monarch_mappings_refuse(int refuse) {
    __atomic_store_n(&refused, (uint32_t)refuse, __ATOMIC_SEQ_CST);
    if (refuse)
        monarch_mappings_say(NULL, UINT64_MAX, MONARCH_FORGET);
}

/* Starts the thread of move.c if a mapping waits and the thread does not run. The caller must have
 * blocked signals. If the thread cannot be started, no mapping can be replaced, so all slots are
 * freed. This is the step [start] of the model (tests/csrc/test_mapping_model.py). */
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

/* --- calls from the interposed functions ------------------------------------------------------ */

static struct own *own_page(void) {
    struct own *o = __atomic_load_n(&own, __ATOMIC_ACQUIRE), *none = NULL;
    /* The kernel clears this page in a forked child, so the child finds o->pid = 0, and thereby
     * notices that it is not the parent. */
    if (o || !(o = sys_new_wiped_page()))
        return o;
    o->pid = (uint32_t)sys_getpid();
    if (__atomic_compare_exchange_n(&own, &none, o, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return o;
    sys_unmap(o, 4096);
    return none;
}

int monarch_mapping_can_wait(int prot, int flags) {
    /* A mapping that was ever writable may have private pages with the program's data, which a
     * replacement would lose. A locked mapping is not replaced, because locked pages must stay in
     * memory. */
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
    if (!o || monarch_slots_are_lost() || !monarch_mapped_file(s.begin, &s.file))
        return;
    uint64_t set = sys_signals(SIG_BLOCK, MOST_SIGNALS);
    /* A child of vfork shares this memory, but must not add a mapping. If it did, it could start
     * the thread of move.c, and the thread would end with the child. */
    int is_ours = 0;
    if (monarch_slots_lock(o) && !(is_ours = o->pid == (uint32_t)sys_getpid()))
        monarch_slots_unlock(o);
    if (is_ours) {
        monarch_slot_put(&s);
        monarch_slots_unlock(o);
        start(o);
    }
    /* The program may have locked all its memory since monarch_mapping_can_wait was called. */
    if (__atomic_load_n(&refused, __ATOMIC_SEQ_CST))
        monarch_mappings_say(NULL, UINT64_MAX, MONARCH_FORGET);
    sys_signals(SIG_SETMASK, set);
}

void monarch_mappings_after_fork(void) {
    struct own *o = __atomic_load_n(&own, __ATOMIC_ACQUIRE);
    /* ThreadSanitizer aborts a program that starts a thread in the child of a multithreaded
     * process. So under ThreadSanitizer, the child gives up the lock, and replaces no mappings. */
    if (REAL(__tsan_init))
        monarch_slots_lose();
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
    uint64_t start = monarch_now_ns();
    while ((GET(o->helper) ||
            (GET(o->tid) && sys6(SYS_tgkill, sys_getpid(), GET(o->tid), 0, 0, 0, 0) == 0)) &&
           monarch_now_ns() - start < END_NS)
        sys_nap(NAP_NS);
}
