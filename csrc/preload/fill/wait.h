/* Waits for parts of a copy that is being filled; every wait has a bound. */
#pragma once

#include "preload/session/session.h"

/* The bytes that a caller wants: the range [at, at + n) of the file that entry `id` of the
 * session's catalog describes. */
struct monarch_wanted {
    struct session *session;
    const struct monarch_entry *entry;
    uint64_t id, at, n;
    uint64_t ino; /* inode number of the caller's file */
    /* The track word of the caller's descriptor (monarch_tracked in track.h). 0: the caller has no
     * descriptor of the file yet, or does not need the word. */
    uint64_t tracked;
    /* The version that the entry had when it was found for the caller's file. If the entry later
     * describes another file, it has another version. */
    uint32_t version;
    /* Time at which the caller began to wait for the byte at `at`. 0: the caller has not waited for
     * that byte yet. */
    uint64_t since_ns;
    uint64_t limit_ns; /* limit of the wait; 0: the default of the function that waits */
    /* 1: the caller waits instead of opening the source. The wait must not last much longer than
     * the open would. */
    int is_instead;
};

/* Returns the entry's current word, from the newest catalog. `entry` may be in an older catalog,
 * which the daemon no longer writes to. */
static inline uint64_t monarch_word_of(const struct monarch_wanted *w) {
    const struct monarch_catalog *c = monarch_catalog_of(w->session);
    return __atomic_load_n(&monarch_entries(c)[w->id].word, __ATOMIC_ACQUIRE);
}

/* Returns whether the entry has another version than w->version, and so no longer describes the
 * caller's file. If the result is 0, any word that was read from the entry before this call belongs
 * to a copy of the caller's file. */
static inline int monarch_is_replaced(const struct monarch_wanted *w) {
    const struct monarch_catalog *c = monarch_catalog_of(w->session);
    return __atomic_load_n(&monarch_entries(c)[w->id].version, __ATOMIC_ACQUIRE) != w->version;
}

/* Returns the number of wanted bytes that can be read now from the copy that `word` names. The
 * count begins at the first wanted byte and ends at the first gap. Returns -1 if the bytes can
 * never be read from that copy, or if the segment `fills` is not mapped. */
int64_t monarch_ready(const struct monarch_wanted *w, uint64_t word);

/* Demands the missing units of the wanted bytes, and waits for the first missing unit. Returns 0 if
 * the caller must read the source instead. If the result is 1, the unit may have been filled, and
 * the caller must check again. */
int monarch_demand_and_wait(struct monarch_wanted *w);

/* Waits until the copy is complete and published. This is for callers that cannot use an incomplete
 * copy. Does not wait if too much of the copy is missing. Returns whether the copy is published.
 * The wait lasts at most w->limit_ns, or a second if w->limit_ns is 0. */
int monarch_wait_for_all(const struct monarch_wanted *w);

/* Returns whether a thread has already begun the fill that `word` names. If so, the fill is no
 * longer queued. */
int monarch_is_under_way(struct session *s, uint64_t word);

/* Demands the unit of the first wanted byte, so that a queued fill moves to the front of the queue.
 * Does not wait. */
void monarch_demand_first(const struct monarch_wanted *w);
