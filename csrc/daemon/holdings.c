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
#include "engine.h"
#include "sums.h"

/* Blocks that were looked through last, and for how long that is enough [ns]. */
#define CHECKS 4096
#define CHECKED_NS 60000000000ULL

struct checked {
    uint64_t word, block, at_ns;
};

/* Copies that were found rotten and that the daemon has not heard of. More are found again. */
#define ROTTEN 64

struct rotten {
    uint64_t id, word;
};

/* Demands that peers' requests have standing: the others are this node's own readers'. */
#define DEMANDS (MONARCH_DEMANDS / 4)
/* A source that has given nothing for this long is stuck, and an asker's own way to it may not be:
 * with the time of an answer less than the 2 s that a reader may wait for what is stuck [ns]. */
#define STUCK_NS 1000000000ULL
/* A file that changes while it is looked up is looked up again this often. */
#define LOOKS 3

struct monarch_holdings {
    struct monarch_clients *clients;
    const struct monarch_fills *fills;
    uint64_t block_bytes, device[MONARCH_MAX_SOURCES];
    int copies[MONARCH_MAX_TIERS];
    pthread_rwlock_t lock; /* of the catalog, which is replaced by a larger one */
    const struct monarch_catalog *catalog;
    uint64_t *kept;    /* atomic: a bit for every entry */
    int is_ready;      /* atomic: the bits say what is kept */
    uint32_t next_tag; /* atomic: of a demand */
    struct monarch_sums *sums;
    pthread_mutex_t checking; /* of the next three */
    struct checked checked[CHECKS];
    struct rotten rotten[ROTTEN];
    uint64_t rotten_count;
    pthread_mutex_t waking; /* so that the server is not stopped meanwhile */
    struct monarch_peer_server *server;
};

/* A copy that a peer is sent. */
struct held {
    uint64_t id, word, size, blocks, block_bytes, sum; /* sum: the file's */
    int fd, slot; /* slot: of the map, -1 for a copy that is whole */
    int is_hasty; /* somebody waits for the very bytes that are asked for */
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

/* As a reader of this node does, so that it comes before what nobody waits for. The engine or the
 * daemon's turn takes it away. */
static void demand(holdings *h, uint64_t id, uint64_t unit) {
    uint64_t *to = NULL, none = 0;
    for (int i = 0; i < DEMANDS; i++) {
        uint64_t *at = &h->clients->demand[i], d = __atomic_load_n(at, __ATOMIC_RELAXED);
        if (d && monarch_demand_entry(d) == id && monarch_demand_unit(d) == unit)
            return;
        to = d || to ? to : at;
    }
    uint32_t tag = __atomic_fetch_add(&h->next_tag, 2, __ATOMIC_RELAXED);
    if (to && __atomic_compare_exchange_n(to, &none, monarch_demand(id, unit, tag, 0), 0,
                                          __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        monarch_ring_for_demand(h->clients);
}

/* Whoever asks for a whole block of many units has time, unless he says otherwise. A unit alone is
 * demanded in any case: two nodes that have as many orders as they may, all for each other's small
 * files, would wait for each other, and what is demanded is ordered all the same. */
static int is_hasty(const holdings *h, const struct monarch_peer_request *wanted) {
    uint64_t unit = monarch_unit_of(wanted->size, h->block_bytes);
    return (wanted->is_awaited || wanted->length <= unit) &&
           wanted->size / unit < MONARCH_FILL_UNITS;
}

static void demand_first(holdings *h, uint64_t id, const struct monarch_peer_request *wanted) {
    if (wanted->length && is_hasty(h, wanted))
        demand(h, id, wanted->first / monarch_unit_of(wanted->size, h->block_bytes));
}

/* The copy that `word` names; its number is never given to another. */
static enum monarch_peer_status open_copy(const holdings *h,
                                          const struct monarch_peer_request *wanted, uint64_t id,
                                          uint64_t word, int slot,
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
    uint64_t size = wanted->size, blocks = (size + h->block_bytes - 1) / h->block_bytes;
    uint64_t sum = __atomic_load_n(&monarch_entries(h->catalog)[id].sum, __ATOMIC_RELAXED);
    *held =
        (struct held){id, word, size, blocks, h->block_bytes, sum, fd, slot, is_hasty(h, wanted)};
    *out = (struct monarch_peer_opened){held, fd, size, h->block_bytes};
    return MONARCH_PEER_OK;
}

static int is_ready(const holdings *h) { return __atomic_load_n(&h->is_ready, __ATOMIC_ACQUIRE); }

/* Of what this node does not fill for others. */
static enum monarch_peer_status not_kept(const holdings *h) {
    return is_ready(h) ? MONARCH_PEER_UNKNOWN_FILE : MONARCH_PEER_LATER;
}

/* Whether the entry is of the very file that is meant, and its word then. It gets other attributes
 * only when it has no copy: what word and attributes say at one time is of one file. */
static int is_meant(const holdings *h, const struct monarch_entry *e,
                    const struct monarch_peer_request *wanted, uint64_t *word) {
    for (int i = 0; i < LOOKS; i++) {
        uint32_t version = __atomic_load_n(&e->version, __ATOMIC_ACQUIRE);
        struct monarch_entry seen = {.mtime_ns = __atomic_load_n(&e->mtime_ns, __ATOMIC_ACQUIRE),
                                     .ctime_ns = __atomic_load_n(&e->ctime_ns, __ATOMIC_ACQUIRE)};
        uint64_t size = __atomic_load_n(&e->size, __ATOMIC_ACQUIRE);
        uint64_t ino = __atomic_load_n(&e->ino, __ATOMIC_ACQUIRE);
        *word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
        if (version % 2 == 0 && __atomic_load_n(&e->version, __ATOMIC_ACQUIRE) == version)
            return size == wanted->size && monarch_times_of(&seen) == wanted->mtime_ns &&
                   !monarch_is_changed(h->clients, h->device[e->source], ino);
    }
    return 0;
}

static enum monarch_peer_status open_entry(holdings *h, uint64_t id,
                                           const struct monarch_peer_request *wanted,
                                           struct monarch_peer_opened *out) {
    const struct monarch_entry *e = &monarch_entries(h->catalog)[id];
    if (e->kind != MONARCH_FILE)
        return MONARCH_PEER_UNKNOWN_FILE;
    uint64_t word;
    if (!is_meant(h, e, wanted, &word))
        return MONARCH_PEER_CHANGED;
    switch (MONARCH_WORD_STATE(word)) {
    case MONARCH_PRESENT:
        return open_copy(h, wanted, id, word, -1, out);
    case MONARCH_ABSENT:
    case MONARCH_WANTED:
        if (!is_kept(h, id))
            return not_kept(h);
        want(h, id);
        demand_first(h, id, wanted);
        return MONARCH_PEER_LATER;
    case MONARCH_FILLING: {
        if (!is_kept(h, id))
            return not_kept(h);
        int slot = slot_of(h, word);
        if (slot >= 0)
            return open_copy(h, wanted, id, word, slot, out);
        demand_first(h, id, wanted);
        return MONARCH_PEER_LATER;
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
    uint64_t unit_bytes = __atomic_load_n(&f->unit_bytes, __ATOMIC_ACQUIRE), done = at;
    uint64_t failed = __atomic_load_n(&f->failed, __ATOMIC_ACQUIRE);
    uint64_t whole = __atomic_load_n(&f->whole, __ATOMIC_ACQUIRE);
    uint64_t stop = (held->blocks - 1) * held->block_bytes;
    /* A file of more units than the map has bits is not read before it is whole. */
    for (uint64_t u = unit_bytes ? at / unit_bytes : 0; unit_bytes && done < held->size; u++) {
        if (u >= MONARCH_FILL_UNITS ||
            !(__atomic_load_n(&f->done[u / 64], __ATOMIC_ACQUIRE) >> (u % 64) & 1))
            break;
        done = (u + 1) * unit_bytes;
    }
    if (__atomic_load_n(&h->fills->word[held->slot], __ATOMIC_ACQUIRE) != held->word)
        return available_when_over(h, held);
    if (failed)
        return MONARCH_PEER_NEVER;
    if (whole)
        return held->size;
    uint64_t end = done < stop ? done : stop > at ? stop : at;
    if (end == at && held->is_hasty && unit_bytes && done < held->size)
        demand(h, held->id, done / unit_bytes);
    return end;
}

/* What a request waits for comes from this node's source alone. */
static int is_coming(void *arg) {
    const holdings *h = arg;
    uint64_t last = __atomic_load_n(&h->fills->source_ns, __ATOMIC_RELAXED);
    return last && monarch_now_ns() - last < STUCK_NS;
}

static int sum_of(void *arg, void *file, uint64_t block, uint64_t *sum) {
    const holdings *h = arg;
    const struct held *held = file;
    return monarch_sums_find(h->sums, MONARCH_WORD_COPY(held->word), block, sum);
}

/* Whether the entry has this copy still. */
static int is_current(holdings *h, const struct held *held) {
    pthread_rwlock_rdlock(&h->lock);
    int is_it = h->catalog && __atomic_load_n(&monarch_entries(h->catalog)[held->id].word,
                                              __ATOMIC_ACQUIRE) == held->word;
    pthread_rwlock_unlock(&h->lock);
    return is_it;
}

static int agrees(holdings *h, const struct held *held, uint64_t block, uint64_t sum) {
    uint64_t recorded;
    if (monarch_sums_find(h->sums, MONARCH_WORD_COPY(held->word), block, &recorded))
        return sum == recorded;
    /* Of a copy of one block the catalog's sum tells as much. */
    if (held->blocks == 1)
        return monarch_xxh3((const char *)&sum, sizeof sum) == held->sum;
    /* The sums of one that was dropped, maybe because it has rotted, go after it. */
    return is_current(h, held);
}

static struct checked *last_check(holdings *h, const struct held *held, uint64_t block) {
    return &h->checked[monarch_mix(held->word ^ monarch_mix(block)) % CHECKS];
}

/* This node's own programs read it too. */
static void note_rotten(holdings *h, const struct held *held) {
    uint64_t i = 0;
    pthread_mutex_lock(&h->checking);
    while (i < h->rotten_count && h->rotten[i].word != held->word)
        i++;
    int is_new = i == h->rotten_count && i < ROTTEN;
    if (is_new)
        h->rotten[h->rotten_count++] = (struct rotten){held->id, held->word};
    pthread_mutex_unlock(&h->checking);
    if (is_new)
        monarch_doorbell_ring(&h->clients->doorbell);
}

/* Readers that wait ask for a block in many parts: it is looked through once for all of them. */
static int check(void *arg, void *file, uint64_t block, const uint64_t *sum) {
    holdings *h = arg;
    const struct held *held = file;
    uint64_t now = monarch_now_ns();
    int is_good;
    if (held->slot >= 0) /* as it comes from the source */
        return 1;
    int agreed = sum && agrees(h, held, block, *sum);
    if (sum && !agreed)
        note_rotten(h, held);
    pthread_mutex_lock(&h->checking);
    struct checked *last = last_check(h, held, block);
    if (sum) /* what was good before is so no more */
        *last = (struct checked){agreed ? held->word : 0, block, now};
    is_good = last->word == held->word && last->block == block && now - last->at_ns < CHECKED_NS;
    pthread_mutex_unlock(&h->checking);
    return is_good;
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
    struct monarch_sums *sums = monarch_sums_new();
    if (!h || !kept || !sums) {
        free(h);
        free(kept);
        monarch_sums_free(sums);
        return NULL;
    }
    h->clients = clients;
    h->fills = fills;
    h->block_bytes = block_bytes;
    h->kept = kept;
    h->sums = sums;
    for (int i = 0; i < MONARCH_MAX_TIERS; i++)
        h->copies[i] = -1;
    pthread_rwlock_init(&h->lock, NULL);
    pthread_mutex_init(&h->waking, NULL);
    pthread_mutex_init(&h->checking, NULL);
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
    struct monarch_peer_files files = {h,      open_held, available, is_coming,
                                       sum_of, check,     close_held};
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

void monarch_holdings_sums(holdings *h, uint64_t copy, const uint64_t *sums, uint64_t blocks) {
    if (h && sums)
        monarch_sums_keep(h->sums, copy, sums, blocks);
    else if (h)
        monarch_sums_drop(h->sums, copy);
}

/* Of what is wanted or in the making something will still be told. */
static int is_settled(void *arg, const struct monarch_peer_request *wanted) {
    holdings *h = arg;
    unsigned state = MONARCH_BYPASS;
    pthread_rwlock_rdlock(&h->lock);
    int64_t id = h->catalog ? monarch_find_hash(h->catalog, wanted->source, wanted->path_hash) : -1;
    if (id >= 0)
        state = MONARCH_WORD_STATE(
            __atomic_load_n(&monarch_entries(h->catalog)[id].word, __ATOMIC_ACQUIRE));
    pthread_rwlock_unlock(&h->lock);
    return state != MONARCH_ABSENT && state != MONARCH_WANTED && state != MONARCH_FILLING;
}

void monarch_holdings_answer(holdings *h) {
    pthread_mutex_lock(&h->waking);
    if (h->server)
        monarch_peer_wake_if(h->server, is_settled, h);
    pthread_mutex_unlock(&h->waking);
}

uint64_t monarch_holdings_rotten(holdings *h, uint64_t *ids, uint64_t *words, uint64_t most) {
    uint64_t n = 0;
    pthread_mutex_lock(&h->checking);
    for (; n < most && h->rotten_count; n++) {
        const struct rotten *r = &h->rotten[--h->rotten_count];
        ids[n] = r->id;
        words[n] = r->word;
    }
    pthread_mutex_unlock(&h->checking);
    return n;
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
    pthread_mutex_destroy(&h->checking);
    monarch_sums_free(h->sums);
    free(h->kept);
    free(h);
}
