/* Waiting for parts of a copy that is being filled; every wait has a bound. */
#ifndef MONARCH_DEMAND_H
#define MONARCH_DEMAND_H

#include "session.h"

/* Entry `id` of the session's catalog, and the bytes [at, at + n) of its file. */
struct monarch_wanted {
    struct session *session;
    const struct monarch_entry *entry;
    uint64_t id, at, n;
    uint64_t since_ns; /* nothing has come since then; 0: nobody has waited yet */
    uint64_t limit_ns; /* a wait that is worth no more than this; 0: as long as it helps */
};

/* The entry's word now. Not by `entry`: the daemon may have published a larger catalog meanwhile,
 * and nobody writes to the old one. */
static inline uint64_t monarch_word_of(const struct monarch_wanted *w) {
    const struct monarch_catalog *c = monarch_catalog_of(w->session);
    return __atomic_load_n(&monarch_entries(c)[w->id].word, __ATOMIC_ACQUIRE);
}

/* How many of the bytes, from the first one on, the copy that `word` names can give now; -1 if it
 * never will, or cannot be asked. */
int64_t monarch_ready(const struct monarch_wanted *w, uint64_t word);

/* Asks for what is missing and waits until the first of it may be there. 0: the source is to
 * answer. */
int monarch_demand_and_wait(struct monarch_wanted *w);

/* For who cannot be served in parts: waits, if there is not much to wait for, until the copy of the
 * whole file is complete. Whether it is. */
int monarch_wait_for_all(const struct monarch_wanted *w);

#endif
