/* Waits for parts of a copy that is being filled. Every wait has a time limit. */
#pragma once

#include "preload/session/session.h"

/* Describes the bytes that a caller wants to read: the range [at, at + n) of the file whose entry
 * has the number `id`. */
struct monarch_wanted {
    struct session *session;
    const struct monarch_entry *entry;
    uint64_t id, at, n;
    uint64_t ino; /* inode number of the caller's file */
    /* For a caller that reads through a descriptor: the descriptor's word (track.h), otherwise 0.
     * From this word, the library later notices whether the descriptor was replaced. */
    uint64_t tracked;
    /* The entry's version when the entry was found. If the version differs later, the entry
     * describes another file. */
    uint32_t version;
    /* time at which the caller began to wait for the byte at offset `at`; 0: the caller has not
     * waited for that byte yet */
    uint64_t since_ns;
    uint64_t limit_ns; /* limit of the wait; 0: the default of the function that waits */
    /* 1: the caller waits for the copy instead of opening the source's file. The wait must not last
     * much longer than that open would. */
    int is_instead;
};

/* Returns the entry's word (its state and its copy) from the newest catalog. Do not read
 * w->entry->word instead: w->entry may be in an older catalog, which the daemon no longer
 * updates. */
static inline uint64_t monarch_word_of(const struct monarch_wanted *w) {
    const struct monarch_catalog *c = monarch_catalog_of(w->session);
    return __atomic_load_n(&monarch_entries(c)[w->id].word, __ATOMIC_ACQUIRE);
}

/* Call this after reading words of the entry. Returns whether the entry now describes another file
 * than the caller's. If not, all words that were read so far describe the caller's file. */
static inline int monarch_is_replaced(const struct monarch_wanted *w) {
    const struct monarch_catalog *c = monarch_catalog_of(w->session);
    return __atomic_load_n(&monarch_entries(c)[w->id].version, __ATOMIC_ACQUIRE) != w->version;
}

/* Returns how many of the wanted bytes, from the first one on, can be read now from the unfinished
 * copy that `word` names. Returns -1 if a wait is useless: the fill has failed, the copy has too
 * many units to be read before it is complete, or the segment `fills` is not mapped. */
int64_t monarch_ready(const struct monarch_wanted *w, uint64_t word);

/* Demands from the daemon the units (parts of the file) that contain the wanted bytes, and waits
 * for the first of these units. If the result is 0, the caller must read the source instead. If
 * the result is 1, the unit is probably filled, but the caller must check that. */
int monarch_demand_and_wait(struct monarch_wanted *w);

/* Call this if an incomplete copy is of no use. Waits until the copy is complete and published.
 * Does not wait if too much of the copy is missing. Returns whether the copy is published. The
 * wait lasts at most w->limit_ns, or a second if w->limit_ns is 0. */
int monarch_wait_for_all(const struct monarch_wanted *w);

/* Returns whether a thread has begun to fill the copy that `word` names. Until then, the fill is
 * only queued. */
int monarch_is_under_way(struct session *s, uint64_t word);

/* Demands from the daemon the unit that contains the first wanted byte, and does not wait. The
 * demand moves a queued fill to the front of the queue. */
void monarch_demand_first(const struct monarch_wanted *w);
