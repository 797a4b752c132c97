/* The catalog's writer: one thread writes at a time, into the generation that clients are told
 * of. */
#pragma once

#include <pthread.h>

#include "native.h"

/* The writers are Python's thread, which adds entries and decides, and the copying threads, which
 * publish the copies that they have made and order fills within Python's grants. Readers take no
 * lock. */
struct monarch_writer {
    pthread_mutex_t lock; /* protects the fields below, and all of the catalog but its listings */
    struct monarch_catalog *catalog;
    uint32_t lost; /* a bit for each tier into which nothing is published any more */
};

/* Takes the writer's lock unless that would take more than 20 ms. It is for threads that have other
 * work to do while the catalog grows. Returns whether the caller has the lock. */
int monarch_lock_soon(struct monarch_writer *w);
/* Publishes the copy that a FILL has made, or that a CHECK has found intact, if its entry still
 * waits for this very copy, no client has changed the file, the tier is not lost, and the index of
 * copies has room. Returns whether it did. The caller has the writer's lock. */
int monarch_publish_result(struct monarch_writer *w, const struct monarch_control *k,
                           const struct monarch_clients *m, const struct monarch_result *r);

/* --- for callers that have the writer's lock
 * --------------------------------------------------- */

/* Does what monarch_catalog_add does. */
uint64_t monarch_add(struct monarch_catalog *c, const struct monarch_entry *entries, uint64_t n,
                     const char *pool, uint64_t *ids, uint64_t *added);
void monarch_set_word(struct monarch_catalog *c, struct monarch_entry *e, uint64_t id,
                      uint64_t word);

/* The most slots of an index that may be used. Up to two thirds, or little more, a probe mostly
 * ends in one cache line. */
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

/* Sets the home of a file that nodes share: MONARCH_OWN, MONARCH_OF_OTHERS or 0. */
void monarch_set_home(struct monarch_catalog *c, uint64_t id, unsigned home);
void monarch_put_copy(struct monarch_catalog *c, uint64_t ino, unsigned tier, uint64_t id);
