/* The catalog's writer. Only one thread at a time writes to the catalog. Writes go to the
 * generation (version) of the catalog that clients currently use. */
#pragma once

#include <pthread.h>

#include "native.h"

/* Python's thread writes to add entries and to store its decisions. The engine's threads write to
 * publish copies. While they have a grant (room in which Python lets them order fills), they also
 * start fills and add handed-over files. Readers take no lock. */
struct monarch_writer {
    pthread_mutex_t lock; /* protects the fields below, and the whole catalog except its listings */
    struct monarch_catalog *catalog;
    /* a bit per tier, set by monarch_lose_tier; from then on, no copy in the tier is published */
    uint32_t lost;
};

/* Takes the writer's lock, but gives up after 20 ms. While the catalog grows, another thread holds
 * the lock for longer, and the caller has other work. Returns whether the caller has the lock. */
int monarch_lock_soon(struct monarch_writer *w);
/* Publishes the copy that a FILL has made, or that a CHECK has found intact, if four conditions
 * hold. The entry still has this copy's number. No client has changed the file. The tier is not
 * lost. The index by copy has room. Returns whether the copy was published. The caller has the
 * writer's lock. */
int monarch_publish_result(struct monarch_writer *w, const struct monarch_control *k,
                           const struct monarch_clients *m, const struct monarch_result *r);

/* --- for callers that have the writer's lock -------------------------------------------------- */

/* Like monarch_catalog_add. */
uint64_t monarch_add(struct monarch_catalog *c, const struct monarch_entry *entries, uint64_t n,
                     const char *pool, uint64_t *ids, uint64_t *added);
void monarch_set_word(struct monarch_catalog *c, struct monarch_entry *e, uint64_t id,
                      uint64_t word);

/* Maximum number of used slots of an index: two thirds. Up to this number, most searches end in the
 * cache line where they began. */
#define MONARCH_FULL(slots) ((slots) / 3 * 2)

static inline uint64_t monarch_next_slot(const struct monarch_catalog *c, uint64_t i) {
    return i + 1 == c->slots ? 0 : i + 1;
}

static inline struct monarch_slot *monarch_path_slot(struct monarch_catalog *c, uint64_t i) {
    return (struct monarch_slot *)((char *)c + c->index_at) + i;
}

static inline struct monarch_entry *monarch_table(struct monarch_catalog *c) {
    return (struct monarch_entry *)((char *)c + c->entries_at);
}

/* If nodes share files, stores from where this node fills the file. MONARCH_OWN: from the source.
 * MONARCH_OF_OTHERS: from another node. 0: unknown, or this node neither keeps the file nor asks
 * another node for it. */
void monarch_set_home(struct monarch_catalog *c, uint64_t id, unsigned home);
void monarch_put_copy(struct monarch_catalog *c, uint64_t ino, unsigned tier, uint64_t id);
