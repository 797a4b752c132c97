#define _GNU_SOURCE
#include "demand.h"

#include "attributes.h"
#include "rank.h"
#include "sys.h"
#include "where.h"

/* Demands that one call has standing: what it needs first, and what comes next. */
#define AHEAD 8
/* Places that are tried for a demand. */
#define TRIES 32
/* A look at the daemon's signs of life, and how long it may show none: it is rung at every look,
 * its loop beats then, and every unit counts [ns]. */
#define SLICE_NS 50000000L
#define SILENCE_NS 250000000ULL
/* A daemon that lives may have a slow source: the reader would not have it faster [ns]. */
#define PATIENCE_NS 5000000000ULL
/* Of one file until it is read from the source; of all until everything is, for a while. */
#define TIMEOUTS_OF_FILE 2
#define TIMEOUTS 8
#define PAUSE_NS 30000000000ULL
/* What a process waits in vain in all its life [ns]. */
#define WASTE_NS 60000000000ULL

/* Who needs a whole file waits this long, if no more than so much of it is missing [ns, bytes]; and
 * then for the daemon's word [ns]. */
#define WHOLE_NS 1000000000ULL
#ifndef WHOLE_BYTES /* tests want mappings that do not wait */
#define WHOLE_BYTES (64ULL << 20)
#endif
#define WORD_NS 200000000ULL

static uint8_t timeouts_of[1024] SELDOM; /* by entry */
static uint32_t timeouts;
static uint64_t paused_until_ns, wasted_ns;
static uint32_t next_tag;

static const struct monarch_fills *fills_of(const struct session *s) {
    return __atomic_load_n(&s->fills, __ATOMIC_ACQUIRE);
}

/* Never 0. */
static uint64_t signs_of_life(const struct session *s) {
    return (__atomic_load_n(&s->control->heartbeat, __ATOMIC_RELAXED) +
            __atomic_load_n(&fills_of(s)->units, __ATOMIC_RELAXED)) |
           1ULL << 63;
}

static int may_wait(const struct monarch_wanted *w) {
    uint64_t *silent_at = &w->session->clients->silent_at;
    uint64_t silent = __atomic_load_n(silent_at, __ATOMIC_RELAXED);
    if (silent) {
        if (silent == signs_of_life(w->session))
            return 0;
        __atomic_store_n(silent_at, 0, __ATOMIC_RELAXED);
    }
    if (__atomic_load_n(&timeouts_of[w->id % 1024], __ATOMIC_RELAXED) >= TIMEOUTS_OF_FILE ||
        __atomic_load_n(&wasted_ns, __ATOMIC_RELAXED) > WASTE_NS)
        return 0;
    uint64_t until = __atomic_load_n(&paused_until_ns, __ATOMIC_RELAXED);
    return !until || sys_now_ns() >= until;
}

static void note_timeout(const struct monarch_wanted *w, uint64_t waited_ns) {
    uint8_t *of_file = &timeouts_of[w->id % 1024];
    __atomic_fetch_add(&wasted_ns, waited_ns, __ATOMIC_RELAXED);
    if (__atomic_load_n(of_file, __ATOMIC_RELAXED) < TIMEOUTS_OF_FILE)
        __atomic_fetch_add(of_file, 1, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&timeouts, 1, __ATOMIC_RELAXED) % TIMEOUTS == 0)
        __atomic_store_n(&paused_until_ns, sys_now_ns() + PAUSE_NS, __ATOMIC_RELAXED);
}

static const struct monarch_fill *map_of(const struct monarch_fills *fills, uint64_t word,
                                         unsigned *slot) {
    for (unsigned i = 0; i < MONARCH_FILL_SLOTS; i++)
        if (__atomic_load_n(&fills->word[i], __ATOMIC_ACQUIRE) == word) {
            *slot = i;
            return &fills->fill[i];
        }
    return NULL;
}

static int is_done(const struct monarch_fill *f, uint64_t unit) {
    return unit < MONARCH_FILL_UNITS &&
           (__atomic_load_n(&f->done[unit / 64], __ATOMIC_ACQUIRE) >> (unit % 64) & 1);
}

int64_t monarch_ready(const struct monarch_wanted *w, uint64_t word) {
    unsigned slot;
    const struct monarch_fills *fills = fills_of(w->session);
    const struct monarch_fill *f = fills ? map_of(fills, word, &slot) : NULL;
    if (!fills)
        return -1;
    if (!f)
        return 0;
    uint64_t unit_bytes = __atomic_load_n(&f->unit_bytes, __ATOMIC_ACQUIRE);
    uint64_t failed = __atomic_load_n(&f->failed, __ATOMIC_ACQUIRE), end = w->at;
    if (unit_bytes && !failed)
        for (uint64_t unit = w->at / unit_bytes; end < w->at + w->n && is_done(f, unit); unit++)
            end = (unit + 1) * unit_bytes;
    /* What was read belongs to this copy only if the slot has not been given to another. */
    if (__atomic_load_n(&fills->word[slot], __ATOMIC_ACQUIRE) != word)
        return 0;
    if (!unit_bytes || failed)
        return -1;
    return (int64_t)((end < w->at + w->n ? end : w->at + w->n) - w->at);
}

/* Its place, NULL when there is none. */
static uint64_t *place(struct session *s, uint64_t demand, uint32_t tag) {
    for (uint32_t i = 0; i < TRIES; i++) {
        uint64_t *at = &s->clients->demand[(tag * 7 + i) % MONARCH_DEMANDS], free = 0;
        if (__atomic_load_n(at, __ATOMIC_RELAXED) == 0 &&
            __atomic_compare_exchange_n(at, &free, demand, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
            return at;
    }
    return NULL;
}

static void ring_engine(struct session *s) {
    for (int way = 0; way < MONARCH_WAYS; way++) {
        struct monarch_bell *bell = &s->clients->engine[way];
        __atomic_fetch_add(&bell->rings, 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&bell->sleeping, __ATOMIC_SEQ_CST))
            sys_futex_wake(&bell->rings);
    }
}

/* Whether a look at the entry would now tell the reader what to do. */
static int is_settled(const struct monarch_wanted *w) {
    uint64_t word = monarch_word_of(w);
    if (MONARCH_WORD_STATE(word) == MONARCH_FILLING)
        return monarch_ready(w, word) != 0;
    return MONARCH_WORD_STATE(word) == MONARCH_PRESENT ||
           MONARCH_WORD_STATE(word) == MONARCH_BYPASS;
}

/* The demand is answered by a 0 in its place, and by a wake. */
static int wait_at(struct monarch_wanted *w, uint64_t *at, uint64_t demand) {
    uint64_t start = sys_now_ns(), now = start, alive_ns = start, signs = signs_of_life(w->session);
    uint64_t patience_ns = w->limit_ns ? w->limit_ns : PATIENCE_NS;
    int timed_out = w->since_ns && start - w->since_ns > patience_ns;
    /* Also of answers that bring nothing there is a bound. */
    if (!w->since_ns)
        w->since_ns = start;
    while (!timed_out && __atomic_load_n(at, __ATOMIC_ACQUIRE) == demand && !is_settled(w)) {
        sys_futex_wait((const uint32_t *)at, (uint32_t)demand, SLICE_NS);
        uint64_t seen = signs_of_life(w->session);
        now = sys_now_ns();
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
    now = sys_now_ns();
    __atomic_fetch_add(&n->waits, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&n->wait_ns, now - start, __ATOMIC_RELAXED);
    if (timed_out && now - alive_ns > SILENCE_NS)
        __atomic_store_n(&w->session->clients->silent_at, signs, __ATOMIC_RELAXED);
    else if (timed_out && !w->limit_ns)
        note_timeout(w, now - start);
    return !timed_out;
}

int monarch_demand_and_wait(struct monarch_wanted *w) {
    struct session *s = w->session;
    uint64_t unit_bytes = monarch_unit_of(w->entry->size, s->control->block_bytes);
    uint64_t word = monarch_word_of(w), demand = 0;
    uint64_t first = w->at / unit_bytes, last = (w->at + w->n - 1) / unit_bytes;
    uint64_t *at = NULL;
    /* A file of more units than a map has bits cannot be read before it is complete. */
    if ((w->entry->size - 1) / unit_bytes >= MONARCH_FILL_UNITS || !may_wait(w))
        return 0;
    if (MONARCH_WORD_STATE(word) != MONARCH_FILLING)
        last = first; /* what begins the fill */
    for (uint64_t unit = first; unit <= last && unit < first + AHEAD; unit++) {
        uint32_t tag = __atomic_fetch_add(&next_tag, 2, __ATOMIC_RELAXED);
        uint64_t d = monarch_demand(w->id, unit, tag, monarch_rank);
        uint64_t *here = place(s, d, tag + (uint32_t)sys_getpid());
        if (unit == first) {
            at = here;
            demand = d;
        }
    }
    if (!at)
        return 0;
    ring_engine(s);
    return wait_at(w, at, demand);
}

/* After the last unit comes the daemon's word that the source has not changed meanwhile. */
static int wait_for_word(const struct monarch_wanted *w, uint64_t limit_ns) {
    struct timespec pause = {0, 200000};
    for (uint64_t start = sys_now_ns(); sys_now_ns() - start < limit_ns;) {
        unsigned state = MONARCH_WORD_STATE(monarch_word_of(w));
        if (state != MONARCH_FILLING)
            return state == MONARCH_PRESENT;
        sys6(SYS_nanosleep, (long)&pause, 0, 0, 0, 0, 0);
    }
    return 0;
}

/* Bytes of the file that are not there yet, as far as it is known without waiting. */
static uint64_t missing(const struct monarch_wanted *w, uint64_t word) {
    unsigned slot;
    const struct monarch_fill *f = MONARCH_WORD_STATE(word) == MONARCH_FILLING
                                       ? map_of(fills_of(w->session), word, &slot)
                                       : NULL;
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
    w.since_ns = sys_now_ns();
    w.limit_ns = WHOLE_NS;
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
        if (!ready && !monarch_demand_and_wait(&w))
            return 0;
    }
    return wait_for_word(&w, WORD_NS);
}
