/* Waits for parts of a copy that is being filled; every wait has a bound. */
#pragma once

#include "preload/session/session.h"

/* The part of a file that a caller wants: the bytes [at, at + n) of the file that entry `id` of the
 * session's catalog describes. */
struct monarch_wanted {
    struct session *session;
    const struct monarch_entry *entry;
    uint64_t id, at, n;
    /* The file's inode, and the entry's version when the caller found that the entry describes this
     * file. The version changes once the entry describes another file. */
    uint64_t ino;
    uint32_t version;
    uint64_t since_ns; /* when the wait for the next bytes began; 0: no wait yet */
    uint64_t limit_ns; /* bound of the wait; 0: the default of the function that waits */
    /* 1: the wait takes the place of an open at the source, and must not last much longer. */
    int is_instead;
};

/* Returns the entry's current word. It is not read through `entry`: the daemon may have published a
 * larger catalog since, and nobody writes to the old one. */
static inline uint64_t monarch_word_of(const struct monarch_wanted *w) {
    const struct monarch_catalog *c = monarch_catalog_of(w->session);
    return __atomic_load_n(&monarch_entries(c)[w->id].word, __ATOMIC_ACQUIRE);
}

/* Whether the entry describes another file by now, or another version of the file. If the caller
 * has read the word before, 0 means that the word names a copy of the caller's file. */
static inline int monarch_is_replaced(const struct monarch_wanted *w) {
    const struct monarch_catalog *c = monarch_catalog_of(w->session);
    return __atomic_load_n(&monarch_entries(c)[w->id].version, __ATOMIC_ACQUIRE) != w->version;
}

/* Whether the source returns the file sooner than a wait for its copy would end. */
static inline int monarch_is_fast(const struct session *s, const struct monarch_entry *e) {
    return e->size <= MONARCH_UNIT &&
           __atomic_load_n(&s->control->fast_sources, __ATOMIC_RELAXED) >> e->source & 1;
}

/* Returns how many of the wanted bytes, from the first one on, the copy that `word` names can give
 * now; -1 if this copy will never give them, or if `fills` is not mapped. */
int64_t monarch_ready(const struct monarch_wanted *w, uint64_t word);

/* Demands the missing units and waits until the first of them may be there. Returns 0 if the source
 * must answer instead. */
int monarch_demand_and_wait(struct monarch_wanted *w);

/* For callers that cannot be served in parts: waits until the copy is complete and published,
 * unless too much of it is missing. Returns whether it is. The wait is bounded by w->limit_ns or,
 * if that is 0, by a second. */
int monarch_wait_for_all(const struct monarch_wanted *w);

/* Whether the fill that `word` names is being worked on, and no longer waits for its turn. */
int monarch_is_under_way(struct session *s, uint64_t word);

/* Demands the first of the wanted bytes but does not wait for them, so that a fill that waits for
 * its turn gets it now. */
void monarch_demand_first(const struct monarch_wanted *w);
