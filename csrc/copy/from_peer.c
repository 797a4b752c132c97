#include "copy/from_peer.h"

#include <string.h>
#include <time.h>

#include "copy/flow.h"
#include "copy/state.h"
#include "peers/peers.h"
#include "serving/serving.h"
#include "shared/clock.h"

/* If a peer answers TIMEOUT this many times in a row, the fill asks the next peer or the source. A
 * working peer answers TIMEOUT if it waits for the source and receives nothing for 0.6 s. */
#define ASKED_TRIES 2 /* if a reader waits for the bytes */
#define TRIES 8       /* if no reader waits for the bytes */
/* The longest wait [ns] for a peer that answers COMING, if a reader waits for the bytes. COMING
 * means that the peer is receiving the bytes from the source. To read them here too would be no
 * faster, and would delay other readers. The limit is less than 5 s, the time for which a reader
 * waits for a working daemon. */
#define COMING_ASKED_NS 4000000000ULL
/* The same limit [ns] if no reader waits for the bytes. During this wait, the thread does nothing
 * but serve readers of other files. */
#define COMING_NS 30000000000ULL
/* A peer sends a file's last block only when its own copy is complete. If this node's copy lacks
 * more than NEAR_END blocks, the peer's copy probably lacks blocks too. Then a reader that waits
 * for the last block gets it from the source. */
#define NEAR_END 4
/* The pause [ns] before a peer that is still starting is asked again. */
#define STARTING_NS 100000000L
/* If a peer fails while a reader waits, the next peer is asked only within this time [ns] after the
 * fetch began. Later, the bytes come from the source. */
#define SILENCE_NS 500000000ULL

static_assert(MONARCH_CHUNK >= MONARCH_PEER_CHUNK, "a fetch fits into a thread's buffer");

static void note_sum(void *sum, uint64_t which, uint64_t first, uint64_t bytes, uint64_t value,
                     const unsigned char *digest) {
    struct block_sum *to = sum;
    (void)which, (void)first, (void)bytes;
    *to = (struct block_sum){.xxh3 = value, .has_digest = 1};
    memcpy(to->digest.bytes, digest, sizeof to->digest.bytes);
}

/* Returns whether a reader waits for any of these bytes now. */
static int is_awaited(const struct monarch_engine *e, const struct fill *f, uint64_t at,
                      uint64_t n) {
    uint64_t first = at / f->unit_bytes, count = (n + f->unit_bytes - 1) / f->unit_bytes;
    for (int i = 0; i < MONARCH_DEMANDS; i++) {
        uint64_t d = __atomic_load_n(&e->clients->demand[i], __ATOMIC_ACQUIRE);
        if (d && monarch_demand_entry(d) == f->job->result.id &&
            monarch_demand_unit(d) - first < count)
            return 1;
    }
    return 0;
}

/* Returns whether a waiting reader should get this block from the source, because a peer would
 * probably send it too late. This concerns only the last block, which a peer sends when its own
 * copy is complete. The result is 1 if a peer was already late with this block. It is also 1 if
 * this node lacks more than NEAR_END blocks, because the peer then probably lacks blocks too. */
static int is_too_early(const struct fill *f, int is_last) {
    return is_last && (__atomic_load_n(&f->is_last_late, __ATOMIC_RELAXED) ||
                       __atomic_load_n(&f->blocks_left, __ATOMIC_RELAXED) > NEAR_END);
}

/* Asks the peer once. The request counts for the peer's throughput (flow.h) only if two conditions
 * are true. The peer has the whole file, so it does not wait for the source. And the status is OK
 * or TIMEOUT. With another status, perhaps nothing was sent, because requests are suppressed for a
 * while after a failure. */
static int ask_once(struct monarch_engine *e, const struct fill *f, int which,
                    struct monarch_peer *peer, struct monarch_peer_get *get, char *buffer,
                    struct block_sum *sum) {
    struct visit v = monarch_visit(e, MONARCH_ENDPOINT_OF_PEER(f->job->peer[which]));
    int r = monarch_peer_ask(peer, get, 1, buffer, note_sum, sum);
    int is_ok = get->status == MONARCH_PEER_OK;
    if ((f->job->has_it >> which & 1) && (is_ok || get->status == MONARCH_PEER_TIMEOUT))
        monarch_leave(&v, is_ok ? get->length : 0);
    else
        monarch_leave_unseen(&v);
    return r;
}

/* Returns whether to ask the peer again, because its daemon may still be starting. If so, first
 * pauses. When all nodes are started together, the first node must wait for the others. Otherwise,
 * it would read their files from the source itself. Returns 0 if a reader waits for the bytes. */
static int is_starting(const struct monarch_engine *e, const struct fill *f,
                       const struct monarch_peer *peer, struct monarch_peer_get *get) {
    struct timespec pause = {0, STARTING_NS};
    int is_silent = get->status == MONARCH_PEER_CUT || get->status == MONARCH_PEER_TIMEOUT;
    if (!is_silent || is_awaited(e, f, get->first, get->length) || !monarch_peer_is_starting(peer))
        return 0;
    nanosleep(&pause, NULL);
    get->status = MONARCH_PEER_COMING;
    return 1;
}

/* Asks the peer for the bytes of `get`. Asks again while the peer answers TIMEOUT or COMING, or is
 * still starting. Gives up at the limits at the top of this file, if the engine stops, or if the
 * fill has failed. Stores the outcome in get->status. After two outcomes the peer has not failed,
 * but the caller must read these bytes from the source. MONARCH_PEER_LATER: a reader waits, and the
 * peer would probably be too late (is_too_early). MONARCH_PEER_COMING: after the longest wait, the
 * peer still lacks the bytes or is still starting. */
static void ask(struct monarch_engine *e, const struct fill *f, int which, int is_last,
                struct monarch_peer_get *get, char *buffer, struct block_sum *sum) {
    struct monarch_peer *peer = __atomic_load_n(&e->peers[f->job->peer[which]], __ATOMIC_ACQUIRE);
    /* unasked: the last time at which no reader was waiting for these bytes */
    uint64_t began = monarch_now_ns(), unasked = began;
    get->status = MONARCH_PEER_TIMEOUT;
    for (int tries = 0, silent = 0; peer; tries++) {
        uint64_t now = monarch_now_ns();
        int is_asked = is_awaited(e, f, get->first, get->length);
        unasked = is_asked ? unasked : now;
        if (is_asked && is_too_early(f, is_last))
            get->status = MONARCH_PEER_LATER;
        silent = get->status == MONARCH_PEER_COMING || !tries ? 0 : silent + 1;
        int is_enough = silent >= (is_asked ? ASKED_TRIES : TRIES);
        if (get->status == MONARCH_PEER_LATER || is_enough || now - unasked > COMING_ASKED_NS ||
            now - began > COMING_NS || __atomic_load_n(&e->stopping, __ATOMIC_RELAXED) ||
            __atomic_load_n(&f->failed, __ATOMIC_ACQUIRE))
            return;
        if (tries && !is_asked)
            e->serve_readers(e, buffer);
        /* The request says whether a reader waits for the bytes, because the peer sends awaited
         * bytes first. */
        get->is_awaited = (uint32_t)is_asked;
        /* A peer whose connection broke is not asked again, unless it is still starting. */
        if (ask_once(e, f, which, peer, get, buffer, sum) != 0) {
            if (!is_starting(e, f, peer, get))
                return;
        } else if (get->status != MONARCH_PEER_TIMEOUT && get->status != MONARCH_PEER_COMING) {
            return;
        }
    }
}

/* The peer job->peer[which] has no room for the file, and has answered that `node` keeps it. Adds
 * `node` to the nodes that the fill asks. If several threads call this, `node` is added only
 * once. */
static void follow(struct fill *f, int which, unsigned node) {
    for (int i = which + 1; i < MONARCH_ASKED + MONARCH_MOVES && node < MONARCH_MAX_PEERS; i++) {
        int known = -1;
        if (__atomic_compare_exchange_n(&f->job->peer[i], &known, (int)node, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE))
            __atomic_store_n(&f->job->result.home, (int32_t)node, __ATOMIC_RELEASE);
        if (known < 0 || known == (int)node)
            return;
    }
}

/* Returns the peer with this index among the peers that the fill asks; -1 after the last one. */
static int asked_peer(const struct fill *f, int which) {
    return which < MONARCH_ASKED + MONARCH_MOVES
               ? __atomic_load_n(&f->job->peer[which], __ATOMIC_ACQUIRE)
               : -1;
}

int monarch_fetch(struct monarch_engine *e, struct fill *f, uint64_t at, uint64_t n, char *buffer,
                  struct block_sum *sum) {
    const struct monarch_entry *entry = &f->job->entry;
    uint64_t began = monarch_now_ns();
    int is_last = f->blocks > 1 && at >= (f->blocks - 1) * f->block_bytes;
    struct monarch_peer_get get = {.path_hash = entry->hash,
                                   .size = entry->size,
                                   .mtime_ns = monarch_times_of(entry),
                                   .source = entry->source,
                                   .first = at,
                                   .length = n,
                                   .to = f->to,
                                   .at = at};
    for (int which; asked_peer(f, which = __atomic_load_n(&f->asks, __ATOMIC_ACQUIRE)) >= 0;) {
        /* Say whether this peer owns the file. If the order names two peers, this node does not
         * know which of them is the owner. Then is_owner is 0 for both. */
        get.is_owner = f->peers == 1 || which >= f->peers;
        ask(e, f, which, is_last, &get, buffer, sum);
        if (get.status == MONARCH_PEER_OK) {
            __atomic_fetch_or(&f->gave, 1 << which, __ATOMIC_ACQ_REL);
            __atomic_fetch_add(&e->counts[MONARCH_PEER_BYTES], n, __ATOMIC_RELAXED);
            return 1;
        }
        int is_late = get.status == MONARCH_PEER_TIMEOUT || get.status == MONARCH_PEER_COMING;
        if (is_last && is_late)
            __atomic_store_n(&f->is_last_late, 1, __ATOMIC_RELAXED);
        if (get.status == MONARCH_PEER_LATER || get.status == MONARCH_PEER_COMING ||
            (is_last && is_late))
            return 0;
        if (get.status >= MONARCH_PEER_MOVED)
            follow(f, which, get.status - MONARCH_PEER_MOVED);
        __atomic_compare_exchange_n(&f->asks, &which, which + 1, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED);
        /* A waiting reader should not wait for a second peer that may be silent too. So after
         * SILENCE_NS, get the bytes from the source instead. */
        if (monarch_now_ns() - began > SILENCE_NS && is_awaited(e, f, at, n))
            return 0;
    }
    return 0;
}

int monarch_giver_of(const struct fill *f) {
    for (int which = 0; f->from < 0 && asked_peer(f, which) >= 0; which++)
        if (f->gave == 1 << which)
            return f->job->peer[which];
    return -1;
}
