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
    /* The descriptor's word in the table of track.h, for a caller that reads through a descriptor.
     * The library compares it later to notice whether the descriptor was replaced. 0: not
     * needed. */
    uint64_t tracked;
    /* The entry's version when the entry was found. If the entry's version differs later, the entry
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

/* Returns the entry's word (its state and its copy) from the newest catalog. w->entry may be in an
 * older catalog, which the daemon no longer updates. */
static inline uint64_t monarch_word_of(const struct monarch_wanted *w) {
    const struct monarch_catalog *c = monarch_catalog_of(w->session);
    return __atomic_load_n(&monarch_entries(c)[w->id].word, __ATOMIC_ACQUIRE);
}

/* Returns whether the entry now describes another file than the caller's. If not, every word that
 * was read from the entry before this call describes the caller's file too. */
static inline int monarch_is_replaced(const struct monarch_wanted *w) {
    const struct monarch_catalog *c = monarch_catalog_of(w->session);
    return __atomic_load_n(&monarch_entries(c)[w->id].version, __ATOMIC_ACQUIRE) != w->version;
}

/* Returns how many of the wanted bytes, from the first one on, can be read now from the unfinished
 * copy that `word` names. Returns -1 in three cases: the fill has failed; the copy cannot be read
 * before it is complete, because it has too many units; or the segment `fills` is not mapped. */
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

/* Demands from the daemon the unit that contains the first wanted byte. The demand moves a queued
 * fill to the front of the queue. This function does not wait. */
void monarch_demand_first(const struct monarch_wanted *w);
