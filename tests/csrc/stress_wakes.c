/* Tests that the engine's threads are woken for every piece of work. Nothing else wakes them, so an
 * order whose wake-up is lost never ends.
 *
 *   stress_wakes SOURCE TIER SEED ROUNDS PINGS
 *
 * ROUNDS: rounds of work for several threads;  PINGS: orders for a single thread, one after the
 * other
 *
 * main() acts as the daemon, and as the reader that demands units. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "copy/job.h"
#include "engine/pool.h"
#include "peers/peers.h"
#include "serving/serving.h"
#include "shared/clock.h"
#include "shared/doorbell.h"
#include "stress.h"

#define FILES 320
#define BLOCK (64 * 1024)
#define THREADS 5
#define PEERS 4 /* number of peers, and number of threads for peers */
#define SHARE 3 /* the number of threads that may ask one peer at a time */
/* Time limit of an order [ms]. It is longer than START_NS (peer.c), which is the longest time that
 * a fill waits for a peer that is still starting. */
#define LIMIT_MS 30000
#define RANKS 4 /* number of ranks that readers have; rank 0 stands for no rank */

static int root, copies, copied[FILES];
static struct monarch_control control;
static struct monarch_writer *writer;
static struct monarch_catalog *catalog;
static struct monarch_clients *clients;
static struct monarch_fills *fills;
static struct monarch_engine *engine;
static uint64_t ids[FILES], next_copy = 1, last_sum, rng, demanded, read_ahead;
static unsigned paging; /* number of PAGE_IN orders that have no result yet */

/* The peers cannot be reached. A thread that tries to reach a peer waits until the gate is open.
 * waiting: for each peer, the number of threads that wait. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opens = PTHREAD_COND_INITIALIZER, comes = PTHREAD_COND_INITIALIZER;
static int is_open = 1, waiting[PEERS];

static struct monarch_peer_link *reach(void *arg, uint32_t *status) {
    int *here = arg;
    *status = MONARCH_PEER_CUT;
    pthread_mutex_lock(&gate);
    ++*here;
    pthread_cond_signal(&comes);
    while (!is_open)
        pthread_cond_wait(&opens, &gate);
    --*here;
    pthread_mutex_unlock(&gate);
    return NULL;
}

static void hear(void *arg, uint32_t status, uint64_t began_ns) {
    (void)arg, (void)status, (void)began_ns;
}

static uint64_t deadline(void) { return monarch_now_ns() + LIMIT_MS * 1000000ULL; }

/* Waits for a short random time, so that the next order comes while the threads are looking for
 * work, falling asleep or asleep. */
static void dawdle(void) {
    uint64_t until = monarch_now_ns() + below(&rng, 60) * below(&rng, 10) * 100;
    while (monarch_now_ns() < until)
        ;
}

static void add_files(void) {
    char name[PATH_BYTES], target[MONARCH_PATH_MAX];
    struct monarch_entry e;
    uint64_t added = 0;
    catalog = calloc(1, monarch_catalog_bytes(FILES, FILES * 64));
    CHECK(catalog);
    monarch_catalog_init(catalog, 1, FILES, FILES * 64);
    writer = monarch_writer_new();
    CHECK(writer && monarch_catalog_move(writer, catalog, &control.generation) == 0);
    for (unsigned k = 0; k < FILES; k++) {
        CHECK(monarch_stat_entry(root, 0, name_of(k, name), &e, target, sizeof target) == 0);
        e.path_len = (uint16_t)strlen(name);
        CHECK(monarch_catalog_add(writer, &e, 1, name, &ids[k], &added) == 1);
    }
    CHECK(added == FILES);
}

static void demand_of(uint64_t id) {
    uint64_t size = monarch_entries(catalog)[id].size, unit = monarch_unit_of(size, BLOCK);
    uint64_t *at = &clients->demand[below(&rng, MONARCH_DEMANDS)];
    uint64_t d = monarch_demand(id, size ? below(&rng, (size + unit - 1) / unit) : 0,
                                (uint32_t)below(&rng, 4096), (unsigned)below(&rng, RANKS));
    if (__atomic_load_n(at, __ATOMIC_ACQUIRE))
        return;
    __atomic_store_n(at, d, __ATOMIC_SEQ_CST);
    monarch_ring_for_demand(clients, MONARCH_ORIGINS);
    demanded++;
}

static void take(const struct monarch_result *r) {
    int is_there = r->kind != MONARCH_DROP;
    uint64_t id = r->id, word = is_there ? monarch_word(MONARCH_PRESENT, 0, 0, r->copy) : 0;
    CHECK(r->status == MONARCH_DONE);
    if (r->kind == MONARCH_PAGE_IN) {
        CHECK(paging && r->bytes == monarch_entries(catalog)[id].size);
        paging--;
        read_ahead++;
        return;
    }
    last_sum = r->sum;
    for (unsigned k = 0; k < FILES; k++)
        if (ids[k] == id)
            copied[k] = is_there;
    monarch_set_words(writer, 1, &id, &word);
}

static uint64_t pending(void) {
    return monarch_engine_pending(engine, 0, MONARCH_ORIGINS) +
           monarch_engine_pending(engine, 1, MONARCH_ORIGINS) + paging;
}

static void finish(void) {
    struct monarch_result out[64];
    uint32_t seen = __atomic_load_n(&clients->doorbell, __ATOMIC_SEQ_CST);
    uint64_t limit = deadline();
    while (pending()) {
        uint64_t n = monarch_engine_results(engine, out, 64);
        for (uint64_t i = 0; i < n; i++)
            take(&out[i]);
        monarch_engine_settle(engine);
        if (monarch_now_ns() > limit)
            die("%llu orders wait for a thread that sleeps", (unsigned long long)pending());
        if (!n)
            seen = monarch_wait_doorbell(clients, seen, 50);
    }
    monarch_answer_settled(clients, catalog);
}

static void order_fill(unsigned k, int by_peer) {
    uint64_t id = ids[k], word = monarch_word(MONARCH_FILLING, 0, 0, next_copy), number;
    int32_t nobody[MONARCH_ASKED] = {-1, -1},
            somebody[MONARCH_ASKED] = {(int32_t)below(&rng, PEERS), -1};
    uint32_t tier = 0;
    number = next_copy++;
    monarch_set_words(writer, 1, &id, &word);
    CHECK(monarch_engine_submit(engine, catalog, MONARCH_FILL, (int)below(&rng, 2), 1, &id, &tier,
                                &number, NULL, by_peer ? somebody : nobody) == 1);
}

/* Loads the word atomically, because the engine may be publishing the copy. */
static uint64_t word_of(unsigned k) {
    return __atomic_load_n(&monarch_entries(catalog)[ids[k]].word, __ATOMIC_ACQUIRE);
}

/* Orders PAGE_INs of up to 8 copies. Their results arrive while another file is filled. */
static void page_in(unsigned first) {
    for (unsigned k = first; k < FILES && paging < 8; k++) {
        uint64_t word = word_of(k), copy = MONARCH_WORD_COPY(word);
        uint32_t tier = 0;
        if (MONARCH_WORD_STATE(word) != MONARCH_PRESENT)
            continue;
        CHECK(monarch_engine_submit(engine, catalog, MONARCH_PAGE_IN, 0, 1, &ids[k], &tier, &copy,
                                    NULL, NULL) == 1);
        paging++;
    }
}

static void drop_all(void) {
    for (unsigned k = 0; k < FILES; k++)
        if (copied[k]) {
            uint64_t copy = MONARCH_WORD_COPY(word_of(k));
            uint64_t size = monarch_entries(catalog)[ids[k]].size;
            uint32_t tier = 0;
            CHECK(monarch_engine_drop(engine, 1, &ids[k], &tier, &copy, &size) == 1);
            dawdle();
        }
    finish();
}

static void share_out(void) {
    uint32_t shares[MONARCH_RANKS] = {0};
    for (int rank = 1; rank < RANKS; rank++)
        shares[rank] = (uint32_t)below(&rng, 9);
    monarch_engine_shares(engine, shares);
}

/* Submits a few orders, and in every 50th round more orders than there are slots for fills. Demands
 * come before, between and after the orders. */
static void work_round(int number) {
    unsigned first = (unsigned)below(&rng, FILES);
    unsigned n = number % 50 == 49 ? FILES : 1 + (unsigned)below(&rng, 4);
    if (below(&rng, 4) == 0)
        monarch_engine_width(engine, 1 + (int)below(&rng, THREADS), 1 + (int)below(&rng, THREADS),
                             (int)below(&rng, 2));
    if (below(&rng, 4) == 0)
        share_out();
    for (unsigned i = 0; i < n; i++) {
        /* file 7 is large */
        unsigned k = below(&rng, 8) == 0 && !copied[7] ? 7 : (first + i) % FILES;
        if (MONARCH_WORD_STATE(word_of(k)) != MONARCH_ABSENT)
            continue;
        if (below(&rng, 8) == 0)
            demand_of(ids[k]);
        order_fill(k, below(&rng, 3) == 0);
        for (int d = 0; d < 3 && n < FILES; d++) {
            dawdle();
            if (below(&rng, 2))
                demand_of(ids[k]);
        }
    }
    finish();
    page_in(first);
    unsigned other = first ? first - 1 : FILES - 1;
    if (MONARCH_WORD_STATE(word_of(other)) == MONARCH_ABSENT)
        order_fill(other, 0);
    finish();
    drop_all();
}

/* Submits `count` fills in one call, which wakes threads only once. Fill i, counted from 0, asks
 * peer number `peer` + i * `step`. */
static void order_at_once(unsigned first, unsigned count, int32_t peer, int32_t step) {
    uint64_t some[2 * PEERS], numbers[2 * PEERS];
    uint32_t tiers[2 * PEERS] = {0};
    int32_t asked[2 * PEERS][MONARCH_ASKED];
    for (unsigned i = 0; i < count; i++, peer += step) {
        some[i] = ids[first + i];
        numbers[i] = next_copy++;
        asked[i][0] = peer;
        asked[i][1] = -1;
        uint64_t word = monarch_word(MONARCH_FILLING, 0, 0, numbers[i]);
        monarch_set_words(writer, 1, &some[i], &word);
    }
    CHECK(monarch_engine_submit(engine, catalog, MONARCH_FILL, 0, count, some, tiers, numbers, NULL,
                                asked[0]) == (int)count);
}

/* Sets the largest widths, so that all threads for peers may work. Then closes the gate: each
 * thread that asks a peer waits at the gate until it is opened. */
static void shut(void) {
    monarch_engine_width(engine, THREADS, PEERS, 0);
    pthread_mutex_lock(&gate);
    is_open = 0;
    pthread_mutex_unlock(&gate);
}

/* Waits until `threads` threads in total are held up at the peers `first` to `first` + `peers` - 1.
 */
static void await(int first, int peers, int threads) {
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += LIMIT_MS / 1000;
    pthread_mutex_lock(&gate);
    for (;;) {
        int there = 0;
        for (int i = first; i < first + peers; i++)
            there += waiting[i];
        CHECK(there <= threads);
        if (there == threads)
            break;
        if (pthread_cond_timedwait(&comes, &gate, &limit) != 0)
            die("only %d of %d threads were woken", there, threads);
    }
    pthread_mutex_unlock(&gate);
}

static void let_go(void) {
    pthread_mutex_lock(&gate);
    is_open = 1;
    pthread_cond_broadcast(&opens);
    pthread_mutex_unlock(&gate);
}

/* A thread must be woken for each order, although the threads that were woken first are held up. */
static void all_at_once(void) {
    shut();
    order_at_once(8, PEERS, 0, 1);
    await(0, PEERS, PEERS);
    let_go();
    finish();
    drop_all();
}

/* One peer gets no more than its share of the threads, so a thread is left for another peer. */
static void crowd(void) {
    shut();
    order_at_once(8, 2 * PEERS, 0, 0);
    await(0, 1, SHARE);
    order_at_once(8 + 2 * PEERS, 1, 1, 0);
    await(1, 1, 1);
    await(0, 1, SHARE);
    let_go();
    finish();
    drop_all();
}

/* While no reader waits, at most two threads ask peers, and they ask different peers. When a reader
 * waits for a file, a third thread asks the peer of this file. */
static void narrow(void) {
    shut();
    monarch_engine_width(engine, THREADS, 2, 0);
    order_at_once(8, 2, 0, 0);
    await(0, 1, 1);
    order_at_once(10, 2, 1, 1);
    await(0, PEERS, 2);
    for (uint64_t before = demanded; demanded == before;)
        demand_of(ids[11]);
    await(0, PEERS, 3);
    let_go();
    finish();
    drop_all();
}

/* Gives a single thread one order after another. Each order comes soon after the thread has done
 * the previous order, while the thread looks for work or falls asleep. */
static void ping_pong(int pings) {
    struct monarch_result r;
    uint32_t tier = 0;
    order_fill(8, 0);
    finish();
    uint64_t id = ids[8], sum = last_sum;
    uint64_t copy = MONARCH_WORD_COPY(monarch_entries(catalog)[id].word);
    for (int i = 0; i < pings; i++) {
        CHECK(monarch_engine_submit(engine, catalog, MONARCH_CHECK, 0, 1, &id, &tier, &copy, &sum,
                                    NULL) == 1);
        for (uint64_t limit = deadline(); !monarch_engine_results(engine, &r, 1);)
            if (monarch_now_ns() > limit)
                die("an order waits for a thread that fell asleep");
        CHECK(r.status == MONARCH_DONE);
        monarch_engine_settle(engine);
        for (uint64_t until = monarch_now_ns() + below(&rng, 4000); monarch_now_ns() < until;)
            ;
    }
    drop_all();
}

static void start(int threads, int peer_threads) {
    engine = monarch_engine_start(threads, 1, peer_threads, BLOCK, clients, fills);
    CHECK(engine);
    monarch_engine_publish(engine, writer, &control);
    monarch_engine_await(engine, 1);
    monarch_engine_source(engine, 0, root);
    monarch_engine_tier(engine, 0, copies);
}

int main(int argc, char **argv) {
    CHECK(argc == 6);
    int rounds = atoi(argv[4]);
    make_files(argv[1], 0, FILES);
    root = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    copies = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    rng = strtoull(argv[3], NULL, 10);
    clients = calloc(1, sizeof *clients);
    fills = calloc(1, sizeof *fills);
    CHECK(root >= 0 && copies >= 0 && clients && fills);
    add_files();
    struct monarch_peer *peers[PEERS];
    start(THREADS, PEERS);
    for (unsigned i = 0; i < PEERS; i++) {
        CHECK(peers[i] = monarch_peer_new(reach, hear, &waiting[i]));
        monarch_engine_peer(engine, i, peers[i]);
    }
    for (int i = 0; i < rounds; i++) {
        work_round(i);
        if (i % 10 == 0)
            all_at_once();
        if (i % 10 == 5)
            crowd();
        if (i % 10 == 7)
            narrow();
    }
    shut();
    order_at_once(100, 2 * PEERS, 0, 0);
    await(0, 1, SHARE);
    let_go();
    /* Some orders have not begun, because their peer already has its share of the threads. */
    monarch_engine_stop(engine, 60000);
    for (unsigned i = 0; i < PEERS; i++)
        monarch_peer_free(peers[i]);
    start(1, 0);
    ping_pong(atoi(argv[5]));
    monarch_engine_stop(engine, 60000);
    printf("%llu %llu\n", (unsigned long long)demanded, (unsigned long long)read_ahead);
    monarch_writer_free(writer);
    free(catalog);
    free(fills);
    free(clients);
    close(root);
    close(copies);
    return 0;
}
