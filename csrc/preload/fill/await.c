#define _GNU_SOURCE
#include "preload/fill/await.h"

#include "preload/fill/demand.h"
#include "preload/fill/handover.h"
#include "preload/lookup/copies.h"
#include "preload/process/attributes.h"
#include "shared/sys.h"

/* A wait costs some system calls: a source that is faster than this is asked at once [ns]. */
#define WORTH_WAITING_NS 200000
/* Neither an open nor a read of a source counts for more, and no open waits longer [ns]. */
#define MOST_NS 1000000000ULL
/* Opens that do not wait after waits in vain, at most. */
#define MOST_SKIPPED 64
/* The page cache gives an open, and a read of a small file, sooner than this [ns]. */
#define AT_HAND_NS 20000
/* A local disk gives an open, and a read of a small file, sooner than this. A file system that asks
 * a server for the open takes longer for that [ns]. */
#define OPEN_NEAR_NS 100000
#define READ_NEAR_NS 300000
/* Where most of the last ones were sooner, one file in so many is followed all the same. */
#define FOLLOWED 256
/* Of SHARE_ALL, what is added for one that was sooner, and taken away for one that was not. */
#define SHARE_ALL 1024U
#define SHARE_STEP 16U
/* Of the means, the last value counts for so much (1 / WEIGHT). */
#define WEIGHT 8

/* --- the source's latency -----------------------------------------------------------------------
 */

/* Of this process's own opens and reads at the sources: their mean, and the shares of those that
 * were sooner than the page cache's and a local disk's limit. A thread that waited for a processor
 * makes a mean long, and says little. Threads that write at the same time lose one of their values,
 * and children of a fork inherit them. */
static struct taken {
    uint64_t mean_ns;
    uint32_t at_hand, near;
} opens SELDOM, reads SELDOM;

static void note_share(uint32_t *share, int is_sooner) {
    uint32_t now = __atomic_load_n(share, __ATOMIC_RELAXED);
    now += (is_sooner ? SHARE_ALL / SHARE_STEP : 0) - now / SHARE_STEP;
    __atomic_store_n(share, now, __ATOMIC_RELAXED);
}

static void note(struct taken *t, uint64_t near_ns, uint64_t since_ns) {
    uint64_t took = sys_now_ns() - since_ns, old = __atomic_load_n(&t->mean_ns, __ATOMIC_RELAXED);
    took = took < MOST_NS ? took : MOST_NS; /* one that hung says nothing of the next */
    uint64_t now = old ? old - old / WEIGHT + took / WEIGHT : took;
    __atomic_store_n(&t->mean_ns, now ? now : 1, __ATOMIC_RELAXED);
    note_share(&t->at_hand, took < AT_HAND_NS);
    note_share(&t->near, took < near_ns);
}

void monarch_note_source_open(uint64_t since_ns) { note(&opens, OPEN_NEAR_NS, since_ns); }
void monarch_note_source_read(uint64_t since_ns) { note(&reads, READ_NEAR_NS, since_ns); }

/* Of an open and a read together [ns]; 0: nothing is known yet. */
static uint64_t latency_ns(void) {
    uint64_t open = __atomic_load_n(&opens.mean_ns, __ATOMIC_RELAXED);
    return open ? open + __atomic_load_n(&reads.mean_ns, __ATOMIC_RELAXED) : 0;
}

static int are_most(const uint32_t *of_opens, const uint32_t *of_reads) {
    return __atomic_load_n(of_opens, __ATOMIC_RELAXED) > SHARE_ALL / 2 &&
           __atomic_load_n(of_reads, __ATOMIC_RELAXED) > SHARE_ALL / 2;
}

int monarch_source_is_at_hand(void) {
    static uint32_t passed SELDOM;
    return are_most(&opens.at_hand, &reads.at_hand) &&
           __atomic_fetch_add(&passed, 1, __ATOMIC_RELAXED) % FOLLOWED != 0;
}

int monarch_source_is_near(void) {
    static uint32_t passed SELDOM;
    return are_most(&opens.near, &reads.near) && !are_most(&opens.at_hand, &reads.at_hand) &&
           __atomic_fetch_add(&passed, 1, __ATOMIC_RELAXED) % FOLLOWED != 0;
}

/* --- waits in vain ------------------------------------------------------------------------------
 */

/* Opens that are still to be skipped, and how many the last wait in vain has cost: twice as many
 * each time. */
static uint32_t left_to_skip SELDOM, last_skipped SELDOM;

static int skips(void) {
    uint32_t left = __atomic_load_n(&left_to_skip, __ATOMIC_RELAXED);
    if (left)
        __atomic_store_n(&left_to_skip, left - 1, __ATOMIC_RELAXED);
    return left != 0;
}

static void note_wait(int is_good) {
    uint32_t next = is_good ? 0 : __atomic_load_n(&last_skipped, __ATOMIC_RELAXED) * 2 + 1;
    next = next < MOST_SKIPPED ? next : MOST_SKIPPED;
    __atomic_store_n(&last_skipped, next, __ATOMIC_RELAXED);
    __atomic_store_n(&left_to_skip, next, __ATOMIC_RELAXED);
}

/* --- opens --------------------------------------------------------------------------------------
 */

static int is_changed(const struct session *s, const struct monarch_entry *e) {
    return monarch_is_changed(s->clients, s->control->source[e->source].dev, e->ino);
}

int monarch_wait_for_copy(struct session *s, struct monarch_opening *o) {
    const struct monarch_entry *e = o->entry;
    if (!e || o->served || is_changed(s, e))
        return 0;
    struct monarch_wanted w = {
        .session = s, .entry = e, .id = (uint64_t)o->id, .version = o->version};
    unsigned state = MONARCH_WORD_STATE(monarch_word_of(&w));
    if (state == MONARCH_BYPASS ||
        (state == MONARCH_ABSENT && !monarch_want(s, e, w.id, e->size)) ||
        !monarch_wait_for_all(&w))
        return 0;
    uint64_t word = monarch_word_of(&w);
    if (MONARCH_WORD_STATE(word) != MONARCH_PRESENT || monarch_is_replaced(&w))
        return 0;
    monarch_copy_path(&s->control->tier[MONARCH_WORD_TIER(word)], MONARCH_WORD_COPY(word), o->copy);
    o->waited = 1;
    return 1;
}

/* Waits no longer than the source would take. */
static int wait_instead(struct monarch_wanted *w, uint64_t word) {
    w->is_instead = 1;
    w->n = w->entry->size;
    w->limit_ns = latency_ns() / 5 * 6;
    w->limit_ns = w->limit_ns < MOST_NS ? w->limit_ns : MOST_NS;
    if (w->limit_ns < WORTH_WAITING_NS || skips()) {
        if (!monarch_is_under_way(w->session, word))
            monarch_demand_first(w);
        return 0;
    }
    int is_there = monarch_wait_for_all(w);
    note_wait(is_there);
    return is_there;
}

/* A small file comes from another node, and the source is spared its open: the wait's limit is that
 * of a caller that needs a whole file. */
static int is_given_by_others(const struct session *s, const struct monarch_entry *e) {
    return e->flags & MONARCH_OF_OTHERS && e->size <= s->control->handed_bytes;
}

/* A small file whose fill is under way is read from the source already: an open would have it read
 * twice. The limit is the same. */
static int wait_for_fill(const struct monarch_wanted *w) {
    uint64_t latency = latency_ns();
    if ((latency && latency < WORTH_WAITING_NS) || skips())
        return 0;
    int is_there = monarch_wait_for_all(w);
    note_wait(is_there);
    return is_there;
}

static int wait_as_due(struct monarch_wanted *w, uint64_t word) {
    int is_small = w->entry->size <= MONARCH_UNIT;
    if (is_given_by_others(w->session, w->entry))
        return is_small ? monarch_wait_for_all(w) : wait_for_fill(w);
    if (MONARCH_WORD_STATE(word) != MONARCH_FILLING)
        return 0;
    if (monarch_is_read_direct(w->session, w->entry, w->id))
        return wait_for_fill(w);
    return is_small && wait_instead(w, word);
}

/* Its copy is not long in coming. */
static int is_soon_there(const struct session *s, const struct monarch_entry *e) {
    return e->size <= MONARCH_UNIT || e->size <= s->control->handed_bytes;
}

int monarch_wait_at_open(struct session *s, int dir, const char *path, int flags,
                         struct monarch_opening *o) {
    const struct monarch_entry *e = o->entry;
    struct monarch_wanted w = {.session = s, .entry = e, .id = (uint64_t)o->id};
    if (!e || !e->size || !is_soon_there(s, e) || o->claimed || !monarch_is_plain(flags) ||
        is_changed(s, e) || monarch_is_off(s) || monarch_is_fast(s, e) || !monarch_fills_of(s) ||
        !wait_as_due(&w, monarch_word_of(&w)))
        return 0;
    monarch_look_up(s, dir, path, flags, o); /* it may have changed, or been dropped, meanwhile */
    o->waited = 1;
    return o->served;
}
