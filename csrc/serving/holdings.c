/* The callbacks by which the peer server finds and checks this node's copies (peers/files.h). They
 * read the catalog, and never block. If the sums of a block were recorded at its fill, the block is
 * sent with them. A copy whose bytes have changed since its fill is called rotten. It is reported
 * to the daemon, which removes it. */
#include "serving/serving.h"

#include <stdlib.h>
#include <string.h>

#include "peers/connection.h"
#include "serving/open_copy.h"
#include "serving/sums.h"
#include "shared/clock.h"
#include "shared/doorbell.h"
#include "shared/xxh3.h"

/* After a block was found good, it is not checked again for this long [ns]. If the request says
 * that the block arrived damaged before, DOUBTED_NS applies instead. */
#define CHECKED_NS 60000000000ULL
/* Like CHECKED_NS, but for a block that arrived damaged before. The time is short, because the
 * block may have rotted since the last check. It is not 0: a peer that lies could otherwise cause a
 * check with each request, instead of one per second. */
#define DOUBTED_NS 1000000000ULL

typedef struct monarch_holdings holdings;

static int sum_of(void *arg, void *file, uint64_t block, uint64_t *sum,
                  struct monarch_digest *digest) {
    const struct open_copy *held = file;
    (void)arg;
    if (!held->sums || !held->sums->digests)
        return 0;
    *sum = held->sums->sums[block];
    *digest = held->sums->digests[block];
    return 1;
}

static int agrees(holdings *h, const struct open_copy *held, uint64_t block, uint64_t sum) {
    if (held->sums)
        return sum == held->sums->sums[block];
    /* For a copy of one block, no block sum is recorded. But the catalog has a sum of the whole
     * file, which is computed from its block sums. So compute this sum from `sum`, and compare
     * both. */
    if (held->blocks == 1)
        return monarch_xxh3((const char *)&sum, sizeof sum) == held->sum;
    /* Without recorded sums, assume that the block is good. But if the entry's word has changed
     * since the open, the copy may have been removed because it was rotten. */
    return monarch_has_word(h, held->id, held->word);
}

/* Records a rotten copy for the daemon, which must remove it, because this node's own programs read
 * it too. */
static void note_rotten(holdings *h, const struct open_copy *held) {
    uint64_t i = 0;
    pthread_mutex_lock(&h->checking);
    while (i < h->rotten_count && h->rotten[i].word != held->word)
        i++;
    int is_new = i == h->rotten_count && i < MONARCH_ROTTEN;
    if (is_new)
        h->rotten[h->rotten_count++] = (struct rotten){held->id, held->word};
    pthread_mutex_unlock(&h->checking);
    if (is_new)
        monarch_doorbell_ring(&h->clients->doorbell);
}

/* Implements `check` of struct monarch_peer_files. Remembers for a while which blocks were good:
 * for a waiting reader, a peer requests a block in many small parts, and one check is enough for
 * all of them. */
static int check(void *arg, void *file, uint64_t block, const uint64_t *sum) {
    holdings *h = arg;
    const struct open_copy *held = file;
    uint64_t now = monarch_now_ns();
    int is_good;
    /* A copy that was still being filled when it was opened was written very recently. Assume that
     * its bytes have not rotted. */
    if (held->slot >= 0)
        return 1;
    int agreed = sum && agrees(h, held, block, *sum);
    if (sum && !agreed)
        note_rotten(h, held);
    pthread_mutex_lock(&h->checking);
    struct checked *last = &h->checked[monarch_mix(held->word ^ monarch_mix(block)) % CHECKS];
    /* Store the new result even if an earlier check found the block good, because it may have
     * rotted since. */
    if (sum)
        *last = (struct checked){agreed ? held->word : 0, block, now};
    is_good = last->word == held->word && last->block == block &&
              now - last->at_ns < (held->is_doubted ? DOUBTED_NS : CHECKED_NS);
    pthread_mutex_unlock(&h->checking);
    return is_good;
}

/* --- calls from Python ------------------------------------------------------------------------ */

holdings *monarch_holdings_new(struct monarch_clients *clients, const struct monarch_fills *fills,
                               uint64_t block_bytes, const unsigned char *content_key) {
    holdings *h = calloc(1, sizeof *h);
    uint16_t *home = calloc(MONARCH_MAX_FILES, sizeof *home);
    struct monarch_sums *sums = monarch_sums_new();
    if (!h || !home || !sums) {
        free(h);
        free(home);
        monarch_sums_free(sums);
        return NULL;
    }
    h->clients = clients;
    h->fills = fills;
    h->block_bytes = block_bytes;
    h->home = home;
    h->sums = sums;
    memcpy(h->content_key, content_key, sizeof h->content_key);
    for (int i = 0; i < MONARCH_MAX_TIERS; i++)
        h->copies[i] = -1;
    pthread_rwlock_init(&h->lock, NULL);
    pthread_rwlock_init(&h->waking, NULL);
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

void monarch_holdings_keep(holdings *h, uint64_t n, const uint64_t *ids, const uint16_t *home) {
    for (uint64_t i = 0; i < n; i++)
        if (ids[i] < MONARCH_MAX_FILES)
            __atomic_store_n(&h->home[ids[i]], home[i], __ATOMIC_RELAXED);
}

uint64_t monarch_holdings_moved(holdings *h, uint64_t *ids) {
    pthread_mutex_lock(&h->checking);
    uint64_t n = h->moved_count;
    memcpy(ids, h->moved_here, n * sizeof *ids);
    h->moved_count = 0;
    pthread_mutex_unlock(&h->checking);
    return n;
}

struct monarch_peer_server *monarch_holdings_serve(holdings *h,
                                                   const struct monarch_peer_bounds *bounds) {
    struct monarch_peer_files files = {
        h,     monarch_open_copy, monarch_copy_available, monarch_copy_is_coming, sum_of,
        check, monarch_close_copy};
    struct monarch_peer_server *s = monarch_peer_serve(&files, bounds, h->content_key);
    pthread_rwlock_wrlock(&h->waking);
    h->server = s;
    pthread_rwlock_unlock(&h->waking);
    return s;
}

void monarch_holdings_wake(holdings *h, uint32_t source, uint64_t path_hash) {
    if (!h)
        return;
    pthread_rwlock_rdlock(&h->waking);
    if (h->server)
        monarch_peer_wake(h->server, source, path_hash);
    pthread_rwlock_unlock(&h->waking);
}

const unsigned char *monarch_holdings_key(const holdings *h) { return h ? h->content_key : NULL; }

void monarch_holdings_sums(holdings *h, uint64_t copy, const uint64_t *sums,
                           const struct monarch_digest *digests, uint64_t blocks) {
    if (h && sums)
        monarch_sums_keep(h->sums, copy, sums, digests, blocks);
    else if (h)
        monarch_sums_drop(h->sums, copy);
}

/* Returns whether the request need not wait any longer. It must wait only if this node is filling
 * its file or will fill it. Bytes of the file then wake it (monarch_holdings_wake). */
static int is_settled(void *arg, const struct monarch_peer_request *wanted) {
    holdings *h = arg;
    unsigned state = MONARCH_BYPASS;
    pthread_rwlock_rdlock(&h->lock);
    int64_t id = h->catalog ? monarch_find_hash(h->catalog, wanted->source, wanted->path_hash) : -1;
    if (id >= 0 && monarch_home_here(h, (uint64_t)id) < MONARCH_MOVED_TO)
        state = MONARCH_WORD_STATE(
            __atomic_load_n(&monarch_entries(h->catalog)[id].word, __ATOMIC_ACQUIRE));
    pthread_rwlock_unlock(&h->lock);
    return state != MONARCH_ABSENT && state != MONARCH_WANTED && state != MONARCH_FILLING;
}

void monarch_holdings_answer(holdings *h) {
    pthread_rwlock_rdlock(&h->waking);
    if (h->server)
        monarch_peer_wake_if(h->server, is_settled, h);
    pthread_rwlock_unlock(&h->waking);
}

static int is_any(void *arg, const struct monarch_peer_request *wanted) {
    return (void)arg, (void)wanted, 1;
}

void monarch_holdings_patience(holdings *h, int patience) {
    if (__atomic_exchange_n(&h->patience, patience, __ATOMIC_ACQ_REL) == patience)
        return;
    pthread_rwlock_rdlock(&h->waking);
    if (h->server)
        monarch_peer_wake_if(h->server, is_any, NULL);
    pthread_rwlock_unlock(&h->waking);
}

uint64_t monarch_holdings_rotten(holdings *h, uint64_t *ids, uint64_t *words) {
    uint64_t n = 0;
    pthread_mutex_lock(&h->checking);
    for (; h->rotten_count; n++) {
        const struct rotten *r = &h->rotten[--h->rotten_count];
        ids[n] = r->id;
        words[n] = r->word;
    }
    pthread_mutex_unlock(&h->checking);
    return n;
}

void monarch_holdings_stop(holdings *h, struct monarch_peer_server *s) {
    pthread_rwlock_wrlock(&h->waking);
    h->server = NULL;
    pthread_rwlock_unlock(&h->waking);
    monarch_peer_end(s);
}

void monarch_holdings_free(holdings *h) {
    pthread_rwlock_destroy(&h->lock);
    pthread_rwlock_destroy(&h->waking);
    pthread_mutex_destroy(&h->checking);
    monarch_sums_free(h->sums);
    free(h->home);
    free(h);
}
