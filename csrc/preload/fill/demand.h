/* Waiting for parts of a copy that is being filled; every wait has a bound. */
#ifndef MONARCH_DEMAND_H
#define MONARCH_DEMAND_H

#include "preload/session/session.h"

/* Entry `id` of the session's catalog, and the bytes [at, at + n) of its file. */
struct monarch_wanted {
    struct session *session;
    const struct monarch_entry *entry;
    uint64_t id, at, n;
    /* Of the entry when the caller found its file to be the entry's: the file's inode, and the
     * version, which is another one once the entry is of another file. */
    uint64_t ino;
    uint32_t version;
    uint64_t since_ns; /* nothing has come since then; 0: nobody has waited yet */
    uint64_t limit_ns; /* a wait that is worth no more than this; 0: as long as it helps */
    int is_instead;    /* the wait takes the place of one for the source, and is no longer */
};

/* The entry's word now. Not by `entry`: the daemon may have published a larger catalog meanwhile,
 * and nobody writes to the old one. */
static inline uint64_t monarch_word_of(const struct monarch_wanted *w) {
    const struct monarch_catalog *c = monarch_catalog_of(w->session);
    return __atomic_load_n(&monarch_entries(c)[w->id].word, __ATOMIC_ACQUIRE);
}

/* Whether the entry is of another file by now, or of another state of it. Asked after the word, it
 * says whether the copy that the word names is of the caller's file. */
static inline int monarch_is_replaced(const struct monarch_wanted *w) {
    const struct monarch_catalog *c = monarch_catalog_of(w->session);
    return __atomic_load_n(&monarch_entries(c)[w->id].version, __ATOMIC_ACQUIRE) != w->version;
}

/* Whether the source gives the file sooner than a wait for its copy would end. */
static inline int monarch_is_fast(const struct session *s, const struct monarch_entry *e) {
    return e->size <= MONARCH_UNIT &&
           __atomic_load_n(&s->control->fast_sources, __ATOMIC_RELAXED) >> e->source & 1;
}

/* How many of the bytes, from the first one on, the copy that `word` names can give now; -1 if it
 * never will, or cannot be asked. */
int64_t monarch_ready(const struct monarch_wanted *w, uint64_t word);

/* Asks for what is missing and waits until the first of it may be there. 0: the source is to
 * answer. */
int monarch_demand_and_wait(struct monarch_wanted *w);

/* For who cannot be served in parts: waits, if there is not much to wait for, until the copy of the
 * whole file is complete. Whether it is. w->limit_ns bounds the wait; 0: a second. */
int monarch_wait_for_all(const struct monarch_wanted *w);

/* Whether somebody is at work on the fill that `word` names: it does not wait for its turn. */
int monarch_is_under_way(struct session *s, uint64_t word);

/* Asks for the first of the bytes, so that a fill that waits for its turn has it now, and does not
 * wait. */
void monarch_demand_first(const struct monarch_wanted *w);

#endif
