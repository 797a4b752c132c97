#include "preload/fill/wait.h"

#include "preload/descriptors/track.h"
#include "preload/process/attributes.h"
#include "preload/session/session.h"
#include "shared/sys.h"

/* Maximum number of units that a reader demands at once. */
#define AHEAD 8
/* Maximum number of slots in which a reader tries to place one demand. */
#define TRIES 32
/* Interval [ns] at which a waiting reader checks whether the daemon has made progress. A filled
 * unit counts as progress. If a check finds no progress, the reader rings the daemon. A running
 * daemon then increments its heartbeat, which also counts as progress. */
#define SLICE_NS 50000000L
/* If the daemon makes no progress for this time [ns], readers stop waiting for it. On a busy
 * machine, even a working daemon may get no processor for several tenths of a second. SILENCE_NS
 * must be longer than that; otherwise, readers would needlessly open hundreds of files at the
 * source. It must be shorter than WHOLE_NS, so that a wait for a whole file notices a stopped
 * daemon. Tests set a longer time. */
#ifndef SILENCE_NS
#define SILENCE_NS 750000000ULL
#endif
/* Longest wait [ns] for a daemon that makes progress. If a slow source is the cause of the wait,
 * the reader itself would not get the bytes sooner from the source. So the limit is high. */
#ifndef PATIENCE_NS /* tests set another time */
#define PATIENCE_NS 5000000000ULL
#endif
/* Debts limit how often readers wait in vain. Each wait that times out adds DEBT_NS [ns] to the
 * debt of the file and to the debt of the process. While one of these two debts is too large,
 * reads go to the source without a wait. Each debt shrinks by one second every second, so readers
 * later wait again. */
#ifndef DEBT_NS
#define DEBT_NS 60000000000ULL
#endif
/* Largest debt of a file [ns]. While the debt is above FILE_LIMIT - DEBT_NS, the file is read from
 * the source. */
#define FILE_LIMIT (2 * DEBT_NS)
/* Largest debt of the process [ns]. While the debt is above LIMIT - DEBT_NS, every file is read
 * from the source. */
#define LIMIT (8 * DEBT_NS)
/* Total time [ns] that the process may spend in waits that time out. After that, the process may
 * spend only 1 / WASTE_SHARE of its time in such waits. */
#ifndef WASTE_NS
#define WASTE_NS 60000000000ULL
#endif
#define WASTE_SHARE 20
/* Largest value of waste_debt [ns]. A wait that times out adds WASTE_SHARE times its duration.
 * Like the other debts, waste_debt shrinks by one second every second. */
#define WASTE_LIMIT (WASTE_NS * WASTE_SHARE)

/* Default limit [ns] for a caller that waits for the complete copy. */
#define WHOLE_NS 1000000000ULL
/* A caller that needs the complete copy does not wait if more bytes of the copy than this are
 * missing. */
#ifndef WHOLE_BYTES /* some tests define a smaller number, so that mappings do not wait */
#define WHOLE_BYTES (64ULL << 20)
#endif
/* After all bytes of a copy are filled, a caller with the limit WHOLE_NS waits at most this long
 * [ns] until the daemon publishes the copy. The limit WHOLE_NS still applies to the whole wait. */
#define WORD_NS 200000000ULL

/* The debts. Each debt is stored as the time of CLOCK_MONOTONIC at which it will have shrunk to 0.
 * Children of a fork inherit the debts. */
static uint64_t file_debts[1024] SELDOM; /* index: entry % 1024; some files share a debt */
static uint64_t debt, waste_debt;
static uint32_t next_tag;

/* Returns the segment `fills`, or NULL if monarch_fills_of has not mapped it yet. */
static const struct monarch_fills *fills_of(const struct session *s) {
    return __atomic_load_n(&s->fills, __ATOMIC_ACQUIRE);
}

/* Returns the sum of the daemon's progress counters, with the highest bit set, so that the result
 * is never 0. The caller must have mapped `fills`. */
static uint64_t signs_of_life(const struct session *s) {
    return (__atomic_load_n(&s->control->heartbeat, __ATOMIC_RELAXED) +
            __atomic_load_n(&fills_of(s)->units, __ATOMIC_RELAXED)) |
           1ULL << 63;
}

/* Returns the current size of a debt [ns]. If the stored time implies a debt larger than `limit`,
 * returns 0. In that case, the process was forked into another time namespace, whose clock shows
 * another time. */
static uint64_t owed(const uint64_t *what, uint64_t limit, uint64_t now) {
    uint64_t paid_off = __atomic_load_n(what, __ATOMIC_RELAXED);
    return paid_off > now && paid_off - now <= limit ? paid_off - now : 0;
}

static void owe(uint64_t *what, uint64_t more, uint64_t limit, uint64_t now) {
    uint64_t seen = __atomic_load_n(what, __ATOMIC_RELAXED), sum;
    do
        sum = owed(&seen, limit, now) + more;
    while (!__atomic_compare_exchange_n(what, &seen, now + (sum < limit ? sum : limit), 0,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

static int is_silent(const struct session *s) {
    uint64_t *silent_at = &s->clients->silent_at;
    uint64_t silent = __atomic_load_n(silent_at, __ATOMIC_RELAXED);
    if (silent && silent == signs_of_life(s))
        return 1;
    if (silent)
        __atomic_store_n(silent_at, 0, __ATOMIC_RELAXED);
    return 0;
}

static int may_wait(const struct monarch_wanted *w) {
    uint64_t now = monarch_now_ns();
    return !monarch_is_fast(w->session, w->entry) && !is_silent(w->session) &&
           owed(&file_debts[w->id % 1024], FILE_LIMIT, now) <= FILE_LIMIT - DEBT_NS &&
           owed(&debt, LIMIT, now) <= LIMIT - DEBT_NS &&
           owed(&waste_debt, WASTE_LIMIT, now) <= WASTE_LIMIT - PATIENCE_NS * WASTE_SHARE;
}

/* Increases the debts after a wait that has timed out. If the caller has set a limit, it needs the
 * complete copy. The daemon may be too slow for that, but fast enough for reads of single parts,
 * so only waste_debt increases. If the caller has waited in order not to open the source
 * (is_instead), no debt increases, because open_wait.c itself limits such waits. */
static void note_timeout(const struct monarch_wanted *w) {
    uint64_t now = monarch_now_ns();
    if (w->is_instead)
        return;
    owe(&waste_debt, (now - w->since_ns) * WASTE_SHARE, WASTE_LIMIT, now);
    if (w->limit_ns)
        return;
    owe(&file_debts[w->id % 1024], DEBT_NS, FILE_LIMIT, now);
    owe(&debt, DEBT_NS, LIMIT, now);
}

int64_t monarch_ready(const struct monarch_wanted *w, uint64_t word) {
    const struct monarch_fills *fills = fills_of(w->session);
    int slot = fills ? monarch_fill_slot(fills, word) : -1;
    if (slot < 0)
        return fills ? 0 : -1;
    const struct monarch_fill *f = &fills->fill[slot];
    uint64_t unit_bytes = __atomic_load_n(&f->unit_bytes, __ATOMIC_ACQUIRE);
    uint64_t failed = __atomic_load_n(&f->failed, __ATOMIC_ACQUIRE), end = w->at;
    if (unit_bytes && !failed)
        for (uint64_t unit = w->at / unit_bytes;
             end < w->at + w->n && monarch_unit_is_done(f, unit); unit++)
            end = (unit + 1) * unit_bytes;
    /* While the bits were read, the daemon may have assigned the slot to another copy. The bits
     * are valid only if the slot still belongs to the copy that `word` names. */
    if (__atomic_load_n(&fills->word[slot], __ATOMIC_ACQUIRE) != word)
        return 0;
    if (!unit_bytes || failed)
        return -1;
    return (int64_t)((end < w->at + w->n ? end : w->at + w->n) - w->at);
}

/* Places a demand for a unit, and stores the demand's value in *demand. Returns the demand's slot,
 * or NULL if no slot is free. */
static uint64_t *place(const struct monarch_wanted *w, uint64_t unit, uint64_t *demand) {
    uint32_t tag = __atomic_fetch_add(&next_tag, 2, __ATOMIC_RELAXED);
    uint32_t first = (tag + monarch_track_process()) * 7;
    *demand = monarch_demand(w->id, unit, tag, monarch_rank);
    for (uint32_t i = 0; i < TRIES; i++) {
        uint64_t *at = &w->session->clients->demand[(first + i) % MONARCH_DEMANDS], free = 0;
        if (__atomic_load_n(at, __ATOMIC_RELAXED) == 0 &&
            __atomic_compare_exchange_n(at, &free, *demand, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
            return at;
    }
    return NULL;
}

/* Returns whether a demand for the file may concern the daemon's threads of this origin. The
 * threads of one origin fill files from the source; those of the other origin fill files from
 * other nodes. The entry's flags show from which origin this node fills the file. If neither flag
 * is set (not decided yet), or if the file is being filled, the demand may concern all threads. */
static int may_act(const struct monarch_wanted *w, enum monarch_origin origin) {
    unsigned home = w->entry->flags & (MONARCH_OWN | MONARCH_OF_OTHERS);
    unsigned of_origin = origin == MONARCH_FROM_PEER ? MONARCH_OF_OTHERS : MONARCH_OWN;
    return !home || home & of_origin || MONARCH_WORD_STATE(monarch_word_of(w)) == MONARCH_FILLING;
}

/* Rings the bell of the threads that the demand may concern. If none of these threads sleeps, also
 * rings the bell of the other threads, because any thread can start the fill. Without this second
 * ring, the demand would wake nobody if the daemon had no thread of the file's origin. */
static void ring_engine(const struct monarch_wanted *w) {
    uint32_t sleeping = 0;
    for (int others = 0; others < 2 && !sleeping; others++)
        for (int origin = 0; origin < MONARCH_ORIGINS; origin++) {
            struct monarch_bell *bell = &w->session->clients->engine[origin];
            if (may_act(w, (enum monarch_origin)origin) == others)
                continue;
            __atomic_fetch_add(&bell->rings, 1, __ATOMIC_SEQ_CST);
            uint32_t n = __atomic_load_n(&bell->sleeping, __ATOMIC_SEQ_CST);
            if (n)
                sys_futex_wake(&bell->rings);
            sleeping |= n;
        }
}

/* Returns whether the reader can stop waiting. That is the case if wanted bytes can be read, the
 * copy is complete, the fill has failed, or no copy will be made (BYPASS). */
static int is_settled(const struct monarch_wanted *w) {
    uint64_t word = monarch_word_of(w);
    if (MONARCH_WORD_STATE(word) == MONARCH_FILLING)
        return monarch_ready(w, word) != 0;
    return MONARCH_WORD_STATE(word) == MONARCH_PRESENT ||
           MONARCH_WORD_STATE(word) == MONARCH_BYPASS;
}

/* Waits until the daemon answers the demand. To answer it, the daemon stores 0 in the demand's
 * slot `at`, and wakes the reader. The wait also ends if is_settled returns 1. Returns 0 after a
 * timeout, otherwise 1. */
static int wait_at(struct monarch_wanted *w, uint64_t *at, uint64_t demand) {
    uint64_t start = monarch_now_ns(), now = start, alive_ns = start,
             signs = signs_of_life(w->session);
    uint64_t patience_ns = w->limit_ns ? w->limit_ns : PATIENCE_NS;
    int timed_out = w->since_ns && start - w->since_ns > patience_ns;
    /* If the daemon answers the demand before the bytes can be read, the reader calls this
     * function again. The limit applies to all these waits together. So it counts from
     * w->since_ns, the start of the first wait. */
    if (!w->since_ns)
        w->since_ns = start;
    while (!timed_out && __atomic_load_n(at, __ATOMIC_ACQUIRE) == demand && !is_settled(w)) {
        uint64_t left_ns = w->since_ns + patience_ns > now ? w->since_ns + patience_ns - now : 0;
        sys_futex_wait((const uint32_t *)at, (uint32_t)demand,
                       left_ns < SLICE_NS ? (long)left_ns : SLICE_NS);
        uint64_t seen = signs_of_life(w->session);
        now = monarch_now_ns();
        if (seen != signs)
            alive_ns = now;
        else
            monarch_ring(w->session);
        signs = seen;
        timed_out = now - alive_ns > SILENCE_NS || now - w->since_ns > patience_ns ||
                    !monarch_is_serving(w->session);
    }
    __atomic_compare_exchange_n(at, &demand, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    struct monarch_stats *n = monarch_my_stats(w->session);
    now = monarch_now_ns();
    __atomic_fetch_add(&n->waits, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&n->wait_ns, now - start, __ATOMIC_RELAXED);
    if (timed_out && now - alive_ns > SILENCE_NS)
        __atomic_store_n(&w->session->clients->silent_at, signs, __ATOMIC_RELAXED);
    else if (timed_out)
        note_timeout(w);
    return !timed_out;
}

int monarch_demand_and_wait(struct monarch_wanted *w) {
    struct session *s = w->session;
    uint64_t unit_bytes = monarch_unit_of(w->entry->size, s->control->block_bytes);
    uint64_t word = monarch_word_of(w), demand = 0;
    uint64_t first = w->at / unit_bytes, last = (w->at + w->n - 1) / unit_bytes;
    uint64_t *at = NULL;
    /* If a copy has more units than a fill's bitmap has bits, the copy cannot be read before it is
     * complete. */
    if ((w->entry->size - 1) / unit_bytes >= MONARCH_FILL_UNITS || !may_wait(w))
        return 0;
    if (MONARCH_WORD_STATE(word) != MONARCH_FILLING)
        last = first; /* the fill has not begun, and one demand is enough to start it */
    for (uint64_t unit = first; unit <= last && unit < first + AHEAD; unit++) {
        uint64_t d, *here = place(w, unit, &d);
        if (unit == first) {
            at = here;
            demand = d;
        }
    }
    if (!at)
        return 0;
    ring_engine(w);
    return wait_at(w, at, demand);
}

/* Waits for the daemon to publish a copy whose units are all filled. Before the daemon publishes
 * the copy, it checks that the source's file did not change during the fill. */
static int wait_for_word(const struct monarch_wanted *w, uint64_t limit_ns) {
    struct timespec pause = {0, 200000};
    for (uint64_t start = monarch_now_ns(); monarch_now_ns() - start < limit_ns;) {
        unsigned state = MONARCH_WORD_STATE(monarch_word_of(w));
        if (state != MONARCH_FILLING)
            return state == MONARCH_PRESENT;
        sys6(SYS_nanosleep, (long)&pause, 0, 0, 0, 0, 0);
    }
    return 0;
}

/* Returns how long [ns] the caller may wait until the daemon publishes the copy: the rest of the
 * limit w->limit_ns, and at most WORD_NS if the limit is WHOLE_NS or longer. */
static uint64_t left_for_word(const struct monarch_wanted *w) {
    uint64_t waited = monarch_now_ns() - w->since_ns;
    uint64_t left = waited < w->limit_ns ? w->limit_ns - waited : 0;
    return left < WORD_NS || w->limit_ns < WHOLE_NS ? left : WORD_NS;
}

/* Returns how many bytes of the copy are not filled yet. If the copy has no slot in `fills`,
 * returns the size of the whole file. */
static uint64_t missing(const struct monarch_wanted *w, uint64_t word) {
    const struct monarch_fills *fills = fills_of(w->session);
    int slot = MONARCH_WORD_STATE(word) == MONARCH_FILLING ? monarch_fill_slot(fills, word) : -1;
    const struct monarch_fill *f = slot >= 0 ? &fills->fill[slot] : NULL;
    uint64_t unit_bytes = f ? __atomic_load_n(&f->unit_bytes, __ATOMIC_ACQUIRE) : 0, done = 0;
    if (!unit_bytes)
        return w->entry->size;
    uint64_t units = (w->entry->size + unit_bytes - 1) / unit_bytes;
    for (uint64_t i = 0; i < (units + 63) / 64 && i < MONARCH_FILL_UNITS / 64; i++)
        done += (uint64_t)__builtin_popcountll(__atomic_load_n(&f->done[i], __ATOMIC_ACQUIRE));
    return done < units ? (units - done) * unit_bytes : 0;
}

int monarch_wait_for_all(const struct monarch_wanted *wanted) {
    struct monarch_wanted w = *wanted;
    w.at = 0;
    w.n = w.entry->size;
    w.since_ns = monarch_now_ns();
    w.limit_ns = wanted->limit_ns ? wanted->limit_ns : WHOLE_NS;
    if (!monarch_fills_of(w.session) || missing(&w, monarch_word_of(&w)) > WHOLE_BYTES)
        return 0;
    while (w.n) {
        uint64_t word = monarch_word_of(&w);
        if (MONARCH_WORD_STATE(word) == MONARCH_PRESENT)
            return 1;
        if (MONARCH_WORD_STATE(word) == MONARCH_BYPASS)
            return 0;
        int64_t ready = MONARCH_WORD_STATE(word) == MONARCH_FILLING ? monarch_ready(&w, word) : 0;
        if (ready < 0)
            return 0;
        w.at += (uint64_t)ready;
        w.n -= (uint64_t)ready;
        /* If the daemon has answered the demand, but the file is still ABSENT, the daemon will not
         * fill the file. */
        if (!ready && (!monarch_demand_and_wait(&w) ||
                       MONARCH_WORD_STATE(monarch_word_of(&w)) == MONARCH_ABSENT))
            return 0;
    }
    return wait_for_word(&w, left_for_word(&w));
}

int monarch_is_under_way(struct session *s, uint64_t word) {
    const struct monarch_fills *fills = monarch_fills_of(s);
    return fills && monarch_fill_slot(fills, word) >= 0;
}

void monarch_demand_first(const struct monarch_wanted *w) {
    uint64_t unit_bytes = monarch_unit_of(w->entry->size, w->session->control->block_bytes);
    uint64_t demand;
    if (!is_silent(w->session) && place(w, w->at / unit_bytes, &demand))
        ring_engine(w);
}
