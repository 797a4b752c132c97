#include "preload/fill/open_wait.h"

#include "preload/fill/handover.h"
#include "preload/fill/progress.h"
#include "preload/fill/request.h"
#include "preload/fill/wait.h"
#include "preload/process/attributes.h"
#include "preload/session/copies.h"
#include "shared/sys.h"

/* An open waits for a copy only if an open and a read at the source together take at least this
 * long [ns]. With a faster source, a wait saves no time, because the wait itself needs system
 * calls. */
#define WORTH_WAITING_NS 200000
/* Longest wait [ns] of an open. */
#define MOST_NS 1000000000ULL
/* Maximum number of opens that skip their wait after a wait has ended without a copy. */
#define MOST_SKIPPED 64

/* --- skipped waits ---------------------------------------------------------------------------- */

/* left_to_skip: how many of the next opens skip their wait. last_skipped: the value that
 * left_to_skip had right after the last wait. After a wait that ended without a copy, both become
 * 2 * last_skipped + 1, but at most MOST_SKIPPED. After a wait that ended with a copy, both become
 * 0. */
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

/* --- opens ------------------------------------------------------------------------------------ */

int monarch_wait_for_copy(struct session *s, struct monarch_opening *o) {
    const struct monarch_entry *e = o->entry;
    if (!e || o->served || monarch_entry_is_changed(s, e))
        return 0;
    struct monarch_wanted w = {
        .session = s, .entry = e, .id = (uint64_t)o->id, .version = o->version};
    unsigned state = MONARCH_WORD_STATE(monarch_word_of(&w));
    if (state == MONARCH_BYPASS ||
        (state == MONARCH_ABSENT && !monarch_request_fill(s, e, w.id, e->size)) ||
        !monarch_wait_for_all(&w))
        return 0;
    uint64_t word = monarch_word_of(&w);
    if (MONARCH_WORD_STATE(word) != MONARCH_PRESENT || monarch_is_replaced(&w))
        return 0;
    monarch_copy_path(s, word, o->copy);
    o->waited = 1;
    return 1;
}

/* Waits for the copy at most 1.2 times as long as an open and a read at the source take. If the
 * source is fast, or this open must skip its wait, only moves a queued fill to the front of the
 * queue. Returns whether the copy is complete. */
static int wait_instead(struct monarch_wanted *w, uint64_t word) {
    w->is_instead = 1;
    w->n = w->entry->size;
    w->limit_ns = monarch_latency_ns() / 5 * 6;
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

/* Returns whether this node gets the file from another node, and the file is small enough for an
 * open to wait for its copy. */
static int is_given_by_others(const struct session *s, const struct monarch_entry *e) {
    return e->flags & MONARCH_OF_OTHERS && e->size <= s->control->handed_bytes;
}

/* Waits for the copy, at most WHOLE_NS (wait.c), so that the program need not open the file at the
 * source. Call this if the node gets the file from another node, or if the daemon is already
 * reading the file at the source. In the second case, the wait saves the source from sending the
 * same bytes twice. */
static int wait_for_fill(const struct monarch_wanted *w) {
    uint64_t latency = monarch_latency_ns();
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
    if (monarch_may_read_direct(w->session, w->entry, w->id))
        return wait_for_fill(w);
    return is_small && wait_instead(w, word);
}

/* Returns whether the file is so small that a fill completes its copy in a short time. */
static int is_soon_there(const struct session *s, const struct monarch_entry *e) {
    return e->size <= MONARCH_UNIT || e->size <= s->control->handed_bytes;
}

int monarch_wait_at_open(struct session *s, int dir, const char *path, int flags,
                         struct monarch_opening *o) {
    const struct monarch_entry *e = o->entry;
    struct monarch_wanted w = {.session = s, .entry = e, .id = (uint64_t)o->id};
    if (!e || !e->size || !is_soon_there(s, e) || o->is_alone || !monarch_is_plain(flags) ||
        monarch_entry_is_changed(s, e) || monarch_is_off(s) || monarch_is_fast(s, e) ||
        !monarch_fills_of(s) || !wait_as_due(&w, monarch_word_of(&w)))
        return 0;
    /* Looks the path up again, because during the wait the file may have changed, or its copy may
     * have been removed. */
    monarch_look_up(s, dir, path, flags, o);
    o->waited = 1;
    return o->served;
}
