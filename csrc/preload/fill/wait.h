/* Waits for parts of a copy that is being filled. Every wait has a time limit. */
#pragma once

#include "preload/session/session.h"

/* Describes the bytes that a caller wants to read: the range [at, at + n) of a file. `id` is the
 * number of the file's entry in the session's catalog. */
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
    /* time at which the caller began to wait for the byte at offset `at`; 0: the caller has not
     * waited for that byte yet */
    uint64_t since_ns;
    uint64_t limit_ns; /* limit of the wait; 0: the default of the function that waits */
    /* 1: the caller waits for the copy so that it need not open the source. The wait must not last
     * much longer than such an open. */
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

/* Returns how many of the wanted bytes can be read now from the unfinished copy that `word` names.
 * Counts from the first wanted byte to the first byte that is not filled yet. Returns -1 if the
 * fill has failed, if the file has too many units to be read before its copy is complete, or if the
 * segment `fills` is not mapped. */
int64_t monarch_ready(const struct monarch_wanted *w, uint64_t word);

/* Demands from the daemon the units (parts of the file) that contain the wanted bytes, and waits
 * for the first of these units. Returns 0 if the caller must read the source instead. Otherwise
 * returns 1. The unit is then probably filled, but the caller must check that. */
int monarch_demand_and_wait(struct monarch_wanted *w);

/* Waits until the copy is complete and published. Call this if an incomplete copy is of no use.
 * Does not wait if too much of the copy is missing. Returns whether the copy is published. The wait
 * lasts at most w->limit_ns, or a second if w->limit_ns is 0. */
int monarch_wait_for_all(const struct monarch_wanted *w);

/* Returns whether a thread has begun to fill the copy that `word` names. Until then, the fill is
 * only queued. */
int monarch_is_under_way(struct session *s, uint64_t word);

/* Demands from the daemon the unit that contains the first wanted byte. If the fill is queued, this
 * moves it to the front of the queue. Does not wait. */
void monarch_demand_first(const struct monarch_wanted *w);
