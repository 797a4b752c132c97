/* The catalog's writer. Only one thread at a time writes to the catalog. Every write goes to the
 * generation (version) of the catalog that clients currently use. */
#pragma once

#include <pthread.h>

#include "native.h"

/* Python's thread writes when it adds entries or makes decisions. The engine's threads write when
 * they publish copies. They also write when Python has granted them room, so that they start fills
 * or add handed-over files on their own. Readers take no lock. */
struct monarch_writer {
    pthread_mutex_t lock; /* protects the fields below, and the whole catalog except its listings */
    struct monarch_catalog *catalog;
    /* a bit per tier, set by monarch_lose_tier; from then on, no copy in the tier is published */
    uint32_t lost;
};

/* Takes the writer's lock, but gives up after 20 ms. While the catalog grows, another thread holds
 * the lock for longer. The calling thread has other work, and should not wait so long. Returns
 * whether the caller has the lock. */
int monarch_lock_soon(struct monarch_writer *w);
/* Publishes the copy that a FILL has made, or that a CHECK has found intact. There are four
 * conditions: the entry still has this copy's number, no client has changed the file, the tier is
 * not lost, and the index by copy has room. Returns whether the copy was published. The caller has
 * the writer's lock. */
int monarch_publish_result(struct monarch_writer *w, const struct monarch_control *k,
                           const struct monarch_clients *m, const struct monarch_result *r);

/* --- for callers that have the writer's lock -------------------------------------------------- */

/* Like monarch_catalog_add. */
uint64_t monarch_add(struct monarch_catalog *c, const struct monarch_entry *entries, uint64_t n,
                     const char *pool, uint64_t *ids, uint64_t *added);
void monarch_set_word(struct monarch_catalog *c, struct monarch_entry *e, uint64_t id,
                      uint64_t word);

/* Maximum number of used slots of an index: two thirds of its slots. Up to this number, most
 * searches end in the cache line where they began. */
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

/* Stores the origin from which this node fills the file, if nodes share files: MONARCH_OWN for the
 * source, MONARCH_OF_OTHERS for another node. 0: the origin is unknown, or this node does not keep
 * the file and asks no other node for the file. */
void monarch_set_home(struct monarch_catalog *c, uint64_t id, unsigned home);
void monarch_put_copy(struct monarch_catalog *c, uint64_t ino, unsigned tier, uint64_t id);
