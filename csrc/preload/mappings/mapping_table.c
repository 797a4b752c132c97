/* The table of the mappings that wait for their copies. A lock guards the table.
 *
 * A thread holds the lock only while it reads or changes the table. Meanwhile, it blocks all
 * signals that a program can handle. Otherwise, a signal handler could leave this code by a jump
 * (siglongjmp), and the lock would never be released. A replacement of a mapping takes longer, so
 * the replacing thread does not hold the lock. Instead it sets the mapping's slot to the state
 * REPLACING. A thread that is about to change the slot's range waits for the end of the
 * replacement.
 *
 * Names in brackets in the comments are steps of the model in tests/csrc/test_mapping_model.py. */
#include "preload/mappings/mapping_table.h"

#include "preload/process/attributes.h"

/* If a thread has waited this long [ns] for the lock, the process gives up the lock: no thread
 * takes it again. A wait that long has only one possible cause: a child of vfork was killed while
 * it held the lock. */
#define LOCK_NS 1000000000ULL
#define NAP_NS 50000L

uint32_t monarch_mappings_waiting;
struct slot monarch_slots[SLOTS] SELDOM;
static uint32_t edits; /* atomic: the number of times that a change of the table has begun or ended;
                        * odd during a change */
static uint32_t next_number;
static uint32_t given_up; /* atomic; 1: the lock is given up; no mapping is replaced any more */

/* --- the lock -------------------------------------------------------------------------------- */

static void begin_edit(void) { __atomic_fetch_add(&edits, 1, __ATOMIC_ACQ_REL); }
static void end_edit(void) { __atomic_fetch_add(&edits, 1, __ATOMIC_RELEASE); }

void monarch_slots_recount(void) {
    uint32_t n = 0;
    for (int i = 0; i < SLOTS; i++)
        n += GET(monarch_slots[i].state) != FREE;
    __atomic_store_n(&monarch_mappings_waiting, GET(given_up) ? 0 : n, __ATOMIC_RELEASE);
}

/* Adapts the inherited table in the child of a fork. If a thread of the parent was changing the
 * table at the fork, the change may be incomplete, so the child frees all slots. If the parent was
 * replacing a mapping, only the parent continues, so the child sets the slot to WAITING again. The
 * child may have inherited the replaced mapping already. That does no harm, because each
 * replacement first checks what is mapped. This is the function adopt of the model
 * (tests/csrc/test_mapping_model.py). */
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
            start = monarch_now_ns();
        else if (monarch_now_ns() - start > LOCK_NS)
            __atomic_store_n(&given_up, 1, __ATOMIC_SEQ_CST);
        else
            sys_nap(NAP_NS);
    }
    return 0;
}

void monarch_slots_unlock(struct own *o) { __atomic_store_n(&o->lock, 0, __ATOMIC_SEQ_CST); }

void monarch_slots_lose(void) { __atomic_store_n(&given_up, 1, __ATOMIC_SEQ_CST); }
int monarch_slots_are_lost(void) { return (int)__atomic_load_n(&given_up, __ATOMIC_SEQ_CST); }

/* --- the table ------------------------------------------------------------------------------- */

void monarch_slot_free(struct slot *s) {
    begin_edit();
    SET(s->state, FREE);
    end_edit();
    monarch_slots_recount();
}

/* Stores `what` in a free slot. Returns that slot, or NULL if no slot is free. The caller holds the
 * lock and has called begin_edit. */
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

/* Applies `what` (MONARCH_FORGET, or advice of madvise) to the part [begin, end) of the slot's
 * range. The parts of the range before and after [begin, end) get slots of their own, and continue
 * to wait for the copy. A part for which no slot is free stays a mapping of the source's file.
 * This is the step [carve] of the model (tests/csrc/test_mapping_model.py). */
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

void monarch_slot_put(const struct slot *what) {
    begin_edit();
    put(what);
    end_edit();
    monarch_slots_recount();
}

static int is_in(const struct slot *s, uint64_t begin, uint64_t end) {
    return __atomic_load_n(&s->state, __ATOMIC_ACQUIRE) != FREE && GET(s->begin) < end &&
           begin < GET(s->end);
}

/* In the model (tests/csrc/test_mapping_model.py), this function is the step [quiet]. */
int monarch_slots_are_quiet(uint64_t begin, uint64_t end) {
    uint32_t seen = __atomic_load_n(&edits, __ATOMIC_ACQUIRE);
    if (seen & 1)
        return 0;
    for (int i = 0; i < SLOTS; i++)
        if (is_in(&monarch_slots[i], begin, end))
            return 0;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return GET(edits) == seen;
}

/* Returns whether a mapping in the range is being replaced. */
static int is_busy(uint64_t begin, uint64_t end) {
    for (int i = 0; i < SLOTS; i++)
        if (is_in(&monarch_slots[i], begin, end) &&
            __atomic_load_n(&monarch_slots[i].state, __ATOMIC_SEQ_CST) == REPLACING)
            return 1;
    return 0;
}

/* These are the steps [busy], [carve], [put] and [end_edit] of the model
 * (tests/csrc/test_mapping_model.py). If the lock was given up, this is only the step [lost]. */
int monarch_slots_say(struct own *o, uint64_t begin, uint64_t end, int what) {
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
    /* The lock was given up, so no further replacement begins. But an earlier replacement may
     * still be under way. Then the result is 0, and the caller calls again. */
    int busy = is_busy(begin, end);
    if (!is_busy(0, UINT64_MAX))
        __atomic_store_n(&monarch_mappings_waiting, 0, __ATOMIC_RELEASE);
    sys_signals(SIG_SETMASK, set);
    return !busy;
}
