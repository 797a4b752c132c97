/* Answers the server of peers from the catalog: as a reader in the library does, the word of an
 * entry and the map of its fill are the truth, and nothing waits here. */
#define _GNU_SOURCE
#include "holdings.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "connection.h"
#include "doorbell.h"

struct monarch_holdings {
    struct monarch_clients *clients;
    const struct monarch_fills *fills;
    uint64_t block_bytes, device[MONARCH_MAX_SOURCES];
    int copies[MONARCH_MAX_TIERS];
    pthread_rwlock_t lock; /* of the catalog, which is replaced by a larger one */
    const struct monarch_catalog *catalog;
    uint64_t *kept;         /* atomic: a bit for every entry */
    int is_ready;           /* atomic: the bits say what is kept */
    pthread_mutex_t waking; /* so that the server is not stopped meanwhile */
    struct monarch_peer_server *server;
};

/* A copy that a peer is sent. */
struct held {
    uint64_t id, word, size, blocks, block_bytes;
    int fd, slot; /* slot: of the map, -1 for a copy that is whole */
};

typedef struct monarch_holdings holdings;

static int is_kept(const holdings *h, uint64_t id) {
    return id < MONARCH_MAX_FILES &&
           (__atomic_load_n(&h->kept[id / 64], __ATOMIC_RELAXED) >> (id % 64) & 1);
}

static void want(holdings *h, uint64_t id) {
    uint64_t *word = &h->clients->wanted[id / 64], bit = 1ULL << (id % 64);
    if (!(__atomic_fetch_or(word, bit, __ATOMIC_SEQ_CST) & bit))
        monarch_doorbell_ring(&h->clients->doorbell);
}

static int slot_of(const holdings *h, uint64_t word) {
    for (int i = 0; i < MONARCH_FILL_SLOTS; i++)
        if (__atomic_load_n(&h->fills->word[i], __ATOMIC_ACQUIRE) == word)
            return i;
    return -1;
}

/* The copy that `word` names; its number is never given to another. */
static enum monarch_peer_status open_copy(const holdings *h, const struct monarch_entry *e,
                                          uint64_t id, uint64_t word, int slot,
                                          struct monarch_peer_opened *out) {
    char name[MONARCH_COPY_NAME + 4];
    struct held *held = malloc(sizeof *held);
    snprintf(name, sizeof name, "%0*llx", MONARCH_COPY_NAME,
             (unsigned long long)MONARCH_WORD_COPY(word));
    int fd = openat(h->copies[MONARCH_WORD_TIER(word)], name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (!held || fd < 0) {
        free(held);
        if (fd >= 0)
            close(fd);
        return MONARCH_PEER_UNKNOWN_FILE;
    }
    uint64_t blocks = (e->size + h->block_bytes - 1) / h->block_bytes;
    *held = (struct held){id, word, e->size, blocks, h->block_bytes, fd, slot};
    *out = (struct monarch_peer_opened){held, fd, e->size, h->block_bytes};
    return MONARCH_PEER_OK;
}

static int is_ready(const holdings *h) { return __atomic_load_n(&h->is_ready, __ATOMIC_ACQUIRE); }

/* Of what this node does not fill for others. */
static enum monarch_peer_status not_kept(const holdings *h) {
    return is_ready(h) ? MONARCH_PEER_UNKNOWN_FILE : MONARCH_PEER_LATER;
}

static enum monarch_peer_status open_entry(holdings *h, uint64_t id,
                                           const struct monarch_peer_request *wanted,
                                           struct monarch_peer_opened *out) {
    const struct monarch_entry *e = &monarch_entries(h->catalog)[id];
    if (e->kind != MONARCH_FILE)
        return MONARCH_PEER_UNKNOWN_FILE;
    if (e->size != wanted->size || e->mtime_ns != wanted->mtime_ns ||
        monarch_is_changed(h->clients, h->device[e->source], e->ino))
        return MONARCH_PEER_CHANGED;
    uint64_t word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
    switch (MONARCH_WORD_STATE(word)) {
    case MONARCH_PRESENT:
        return open_copy(h, e, id, word, -1, out);
    case MONARCH_ABSENT:
    case MONARCH_WANTED:
        if (!is_kept(h, id))
            return not_kept(h);
        want(h, id);
        return MONARCH_PEER_LATER;
    case MONARCH_FILLING: {
        int slot = is_kept(h, id) ? slot_of(h, word) : -1;
        if (slot >= 0)
            return open_copy(h, e, id, word, slot, out);
        return is_kept(h, id) ? MONARCH_PEER_LATER : not_kept(h);
    }
    default:
        return MONARCH_PEER_UNKNOWN_FILE;
    }
}

static enum monarch_peer_status open_held(void *arg, const struct monarch_peer_request *wanted,
                                          struct monarch_peer_opened *out) {
    holdings *h = arg;
    enum monarch_peer_status status = not_kept(h);
    pthread_rwlock_rdlock(&h->lock);
    if (h->catalog && wanted->source < MONARCH_MAX_SOURCES) {
        int64_t id = monarch_find_hash(h->catalog, wanted->source, wanted->path_hash);
        if (id >= 0)
            status = open_entry(h, (uint64_t)id, wanted, out);
    }
    pthread_rwlock_unlock(&h->lock);
    return status;
}

/* Of a fill that is over its map may have been given to another: then the entry says what came of
 * it. */
static uint64_t available_when_over(holdings *h, const struct held *held) {
    uint64_t present = monarch_word(MONARCH_PRESENT, 0, MONARCH_WORD_TIER(held->word),
                                    MONARCH_WORD_COPY(held->word));
    pthread_rwlock_rdlock(&h->lock);
    int is_there = h->catalog && __atomic_load_n(&monarch_entries(h->catalog)[held->id].word,
                                                 __ATOMIC_ACQUIRE) == present;
    pthread_rwlock_unlock(&h->lock);
    return is_there ? held->size : MONARCH_PEER_NEVER;
}

/* The last block is held back until the source was found unchanged: only then do the bytes belong
 * together, and whoever asked for them has no other way to know. */
static uint64_t available(void *arg, void *file, uint64_t at) {
    holdings *h = arg;
    struct held *held = file;
    if (held->slot < 0)
        return held->size;
    const struct monarch_fill *f = &h->fills->fill[held->slot];
    uint64_t unit_bytes = __atomic_load_n(&f->unit_bytes, __ATOMIC_ACQUIRE), end = at;
    uint64_t failed = __atomic_load_n(&f->failed, __ATOMIC_ACQUIRE);
    uint64_t whole = __atomic_load_n(&f->whole, __ATOMIC_ACQUIRE);
    uint64_t stop = (held->blocks - 1) * held->block_bytes;
    /* A file of more units than the map has bits is not read before it is whole. */
    for (uint64_t u = unit_bytes ? at / unit_bytes : 0; unit_bytes && end < stop; u++) {
        if (u >= MONARCH_FILL_UNITS ||
            !(__atomic_load_n(&f->done[u / 64], __ATOMIC_ACQUIRE) >> (u % 64) & 1))
            break;
        end = (u + 1) * unit_bytes;
    }
    if (__atomic_load_n(&h->fills->word[held->slot], __ATOMIC_ACQUIRE) != held->word)
        return available_when_over(h, held);
    if (failed)
        return MONARCH_PEER_NEVER;
    if (whole)
        return held->size;
    return end < stop ? end : stop > at ? stop : at;
}

/* They are computed: only daemons that record copies remember the sums of their blocks. */
static int sum_of(void *arg, void *file, uint64_t block, uint64_t *sum) {
    (void)arg, (void)file, (void)block, (void)sum;
    return 0;
}

static void close_held(void *arg, void *file) {
    struct held *held = file;
    (void)arg;
    close(held->fd);
    free(held);
}

/* --- from Python --------------------------------------------------------------------------------
 */

holdings *monarch_holdings_new(struct monarch_clients *clients, const struct monarch_fills *fills,
                               uint64_t block_bytes) {
    holdings *h = calloc(1, sizeof *h);
    uint64_t *kept = calloc(MONARCH_MAX_FILES / 64, sizeof *kept);
    if (!h || !kept) {
        free(h);
        free(kept);
        return NULL;
    }
    h->clients = clients;
    h->fills = fills;
    h->block_bytes = block_bytes;
    h->kept = kept;
    for (int i = 0; i < MONARCH_MAX_TIERS; i++)
        h->copies[i] = -1;
    pthread_rwlock_init(&h->lock, NULL);
    pthread_mutex_init(&h->waking, NULL);
    return h;
}

void monarch_holdings_source(holdings *h, uint32_t source, uint64_t device) {
    h->device[source] = device;
}

void monarch_holdings_tier(holdings *h, uint32_t tier, int copies) { h->copies[tier] = copies; }

void monarch_holdings_catalog(holdings *h, const struct monarch_catalog *c) {
    pthread_rwlock_wrlock(&h->lock);
    h->catalog = c;
    pthread_rwlock_unlock(&h->lock);
}

void monarch_holdings_keep(holdings *h, uint64_t n, const uint64_t *ids, const uint8_t *is_kept) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t bit = 1ULL << (ids[i] % 64);
        if (ids[i] >= MONARCH_MAX_FILES)
            continue;
        if (is_kept[i])
            __atomic_fetch_or(&h->kept[ids[i] / 64], bit, __ATOMIC_RELAXED);
        else
            __atomic_fetch_and(&h->kept[ids[i] / 64], ~bit, __ATOMIC_RELAXED);
    }
}

void monarch_holdings_ready(holdings *h) { __atomic_store_n(&h->is_ready, 1, __ATOMIC_RELEASE); }

struct monarch_peer_server *monarch_holdings_serve(holdings *h,
                                                   const struct monarch_peer_bounds *bounds) {
    struct monarch_peer_files files = {h, open_held, available, sum_of, close_held};
    struct monarch_peer_server *s = monarch_peer_serve(&files, bounds);
    pthread_mutex_lock(&h->waking);
    h->server = s;
    pthread_mutex_unlock(&h->waking);
    return s;
}

void monarch_holdings_wake(holdings *h, uint32_t source, uint64_t path_hash) {
    if (!h)
        return;
    pthread_mutex_lock(&h->waking);
    if (h->server)
        monarch_peer_wake(h->server, source, path_hash);
    pthread_mutex_unlock(&h->waking);
}

void monarch_holdings_stop(holdings *h, struct monarch_peer_server *s) {
    pthread_mutex_lock(&h->waking);
    h->server = NULL;
    pthread_mutex_unlock(&h->waking);
    monarch_peer_end(s);
}

void monarch_holdings_free(holdings *h) {
    pthread_rwlock_destroy(&h->lock);
    pthread_mutex_destroy(&h->waking);
    free(h->kept);
    free(h);
}
