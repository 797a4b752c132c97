/* Three nodes in one program: engines that fill from each other, servers that send the nodes'
 * copies to peers, and readers that compare every byte. Meanwhile links are cut, servers end, files
 * change, copies are dropped, and catalogs grow.
 *
 *   stress_nodes SOURCE TIER0 TIER1 TIER2 SECONDS SEED
 *
 * Each node has a thread that acts as the node's daemon. Only this thread writes the node's
 * catalog. The program prints the numbers of: successful fills, bytes that came from peers, reads
 * of whole copies, reads of unfinished copies, links, fills from the node to which a file has
 * moved. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include "../csrc/stress.h"
#include "engine/pool.h"
#include "peers/peers.h"
#include "serving/serving.h"
#include "shared/clock.h"
#include "shared/doorbell.h"

#define NODES 3
#define READERS 2           /* number of readers of each node */
#define RANKS 5             /* each demand names a rank from 1 to RANKS - 1, or 0 for no rank */
#define BLOCK (1024 * 1024) /* large, so that several answers are under way on a link */
#define RANGES 6            /* number of ranges of file numbers; each range has one large file */
#define FILES 20
#define CATALOGS 40
#define LINKS 64
#define MOST_FILES 4096

static struct node {
    unsigned number;
    int copies;
    struct monarch_control control;
    struct monarch_writer *writer;
    struct monarch_catalog *catalog; /* accessed atomically; earlier catalogs stay in memory */
    struct monarch_catalog *all[CATALOGS];
    struct monarch_clients *clients;
    struct monarch_fills *fills;
    struct monarch_engine *engine;
    struct monarch_holdings *holdings;
    struct monarch_peer *peer[NODES];
    pthread_mutex_t lock; /* guards `server`, which is restarted */
    struct monarch_peer_server *server;
    uint64_t next_copy, rng;
    pthread_t daemon, reader[READERS];
} nodes[NODES];

static const char *root_path;
static int root, over;
static uint64_t filled, whole_reads, part_reads, links, moved;
/* Duplicates of the links' descriptors: shutdown() of a duplicate cuts the link. */
static int link_fd[LINKS];
static pthread_mutex_t links_lock = PTHREAD_MUTEX_INITIALIZER;

static int is_over(void) { return __atomic_load_n(&over, __ATOMIC_ACQUIRE); }
static void count(uint64_t *n) { __atomic_fetch_add(n, 1, __ATOMIC_RELAXED); }

static void pause_us(long us) {
    struct timespec t = {0, us * 1000};
    nanosleep(&t, NULL);
}

static unsigned number_in(const char *path) { return (unsigned)atoi(path + 5); }

/* --- links --------------------------------------------------------------------------------------
 */

static void connect_pair(int end[2]) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(listener, (struct sockaddr *)&at, n) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &n) == 0);
    end[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(connect(end[0], (struct sockaddr *)&at, n) == 0);
    end[1] = accept(listener, NULL, NULL);
    CHECK(end[1] >= 0 && close(listener) == 0);
}

/* The test uses the same keys for both directions of a link, because it does not test attacks. */
static const struct monarch_peer_keys keys;
static const unsigned char content_key[MONARCH_KEY_BYTES] = {1};

static struct monarch_peer_link *connect_to(void *arg, uint32_t *status) {
    struct node *to = arg;
    int end[2], taken = 0;
    connect_pair(end);
    pthread_mutex_lock(&to->lock);
    if (to->server)
        taken = monarch_peer_server_adopt(to->server, end[1], &keys) == 0;
    pthread_mutex_unlock(&to->lock);
    if (!taken) {
        *status = MONARCH_PEER_REFUSED;
        close(end[0]);
        close(end[1]);
        return NULL;
    }
    int i = (int)(__atomic_fetch_add(&links, 1, __ATOMIC_RELAXED) % LINKS);
    pthread_mutex_lock(&links_lock);
    if (link_fd[i])
        close(link_fd[i]);
    link_fd[i] = fcntl(end[0], F_DUPFD_CLOEXEC, 3);
    pthread_mutex_unlock(&links_lock);
    return monarch_peer_link_new(end[0], &keys, content_key, 300, 300);
}

static void hear(void *arg, uint32_t status, uint64_t began_ns) {
    (void)arg, (void)status, (void)began_ns;
}

static void serve(struct node *n) {
    struct monarch_peer_bounds bounds = {2, 24, 400, 200, 40, 0};
    pthread_mutex_lock(&n->lock);
    n->server = monarch_holdings_serve(n->holdings, &bounds);
    CHECK(n->server);
    pthread_mutex_unlock(&n->lock);
}

static void end_server(struct node *n) {
    pthread_mutex_lock(&n->lock);
    struct monarch_peer_server *s = n->server;
    n->server = NULL;
    pthread_mutex_unlock(&n->lock);
    monarch_holdings_stop(n->holdings, s);
}

/* The thread that cuts links, restarts servers and touches files. */
static void *break_things(void *arg) {
    uint64_t rng = (uintptr_t)arg;
    char path[PATH_BYTES], name[PATH_BYTES];
    while (!is_over()) {
        unsigned k = (unsigned)(below(&rng, RANGES) * 500 + below(&rng, FILES));
        pthread_mutex_lock(&links_lock);
        int *fd = &link_fd[below(&rng, LINKS)];
        if (*fd) {
            shutdown(*fd, SHUT_RDWR);
            close(*fd);
            *fd = 0;
        }
        pthread_mutex_unlock(&links_lock);
        if (below(&rng, 100) == 0) {
            struct node *n = &nodes[below(&rng, NODES)];
            end_server(n);
            pause_us((long)below(&rng, 5000));
            serve(n);
        }
        /* With another mtime, the same bytes count as another file. */
        if (below(&rng, 20) == 0) {
            CHECK(snprintf(path, sizeof path, "%s/%s", root_path, name_of(k, name)) < PATH_BYTES);
            CHECK(utimensat(AT_FDCWD, path, NULL, 0) == 0);
        }
        pause_us(2000);
    }
    return NULL;
}

/* --- a daemon -----------------------------------------------------------------------------------
 */

static const struct monarch_entry *entry(const struct node *n, uint64_t id) {
    return &monarch_entries(n->catalog)[id];
}

static void set_word(struct node *n, uint64_t id, uint64_t word) {
    monarch_set_words(n->writer, 1, &id, &word);
}

static int is_in(const struct node *n, uint64_t id, unsigned state) {
    return entry(n, id)->kind == MONARCH_FILE &&
           MONARCH_WORD_STATE(__atomic_load_n(&entry(n, id)->word, __ATOMIC_RELAXED)) == state;
}

static void grow(struct node *n, uint64_t factor) {
    struct monarch_catalog *old = n->catalog;
    uint64_t generation = old ? old->generation + 1 : 1, capacity = old ? old->capacity : 64;
    uint64_t pool = old ? old->pool_bytes * factor : 2048;
    struct monarch_catalog *fresh = calloc(1, monarch_catalog_bytes(capacity * factor, pool));
    CHECK(fresh && generation < CATALOGS);
    monarch_catalog_init(fresh, generation, capacity * factor, pool);
    CHECK(monarch_catalog_move(n->writer, fresh, &n->control.generation) == 0);
    n->all[generation] = fresh;
    __atomic_store_n(&n->catalog, fresh, __ATOMIC_RELEASE);
    if (n->holdings)
        monarch_holdings_catalog(n->holdings, fresh);
}

static void scan(struct node *n) {
    int finished = 0;
    uint32_t seen = 0;
    struct monarch_scan *s = monarch_scan_start(root, 0, 2, 0, &n->clients->doorbell);
    CHECK(s);
    monarch_scan_allow(s, -1, -1);
    while (!finished) {
        struct monarch_batch *b = monarch_scan_take(s, &finished);
        uint64_t *ids = b ? calloc(b->count, sizeof *ids) : NULL, added = 0;
        for (uint64_t done = 0; b && done < b->count;) {
            done += monarch_catalog_add(n->writer, b->entries + done, b->count - done, b->pool,
                                        ids + done, &added);
            if (done < b->count)
                grow(n, 2);
        }
        if (b)
            monarch_batch_free(b);
        else if (!finished)
            seen = monarch_wait_doorbell(n->clients, seen, 50);
        free(ids);
    }
    monarch_scan_stop(s, 60000);
}

static unsigned number_of(const struct node *n, uint64_t id) {
    return number_in(monarch_pool(n->catalog, entry(n, id)->path));
}
static unsigned owner_of(const struct node *n, uint64_t id) { return number_of(n, id) % NODES; }

/* For every fifth file, the owner has no room, and the next node keeps the file. */
static int is_moved(const struct node *n, uint64_t id) { return number_of(n, id) % 5 == 0; }
static unsigned heir_of(const struct node *n, uint64_t id) { return (owner_of(n, id) + 1) % NODES; }

static void keep(struct node *n) {
    for (uint64_t id = 0; id < n->catalog->count; id++) {
        uint16_t home = MONARCH_KEPT_ELSEWHERE;
        if (entry(n, id)->kind == MONARCH_FILE && owner_of(n, id) == n->number)
            home =
                is_moved(n, id) ? (uint16_t)(MONARCH_MOVED_TO + heir_of(n, id)) : MONARCH_KEPT_HERE;
        monarch_holdings_keep(n->holdings, 1, &id, &home);
    }
    monarch_holdings_patience(n->holdings, MONARCH_NOBODY_WAITS);
}

static void order(struct node *n, uint64_t id) {
    uint64_t copy = n->next_copy++;
    uint32_t tier = 0;
    int32_t from[MONARCH_ASKED];
    for (int i = 0; i < MONARCH_ASKED; i++)
        from[i] = i || owner_of(n, id) == n->number ? -1 : (int32_t)owner_of(n, id);
    /* In half of the orders, a hint says that the owner has the whole file. A wrong hint does no
     * harm, because only time limits depend on it. */
    if (from[0] >= 0 && below(&n->rng, 2))
        from[0] += MONARCH_HAS_IT;
    set_word(n, id, monarch_word(MONARCH_FILLING, 0, 0, copy));
    CHECK(monarch_engine_submit(n->engine, n->catalog, MONARCH_FILL, (int)below(&n->rng, 2), 1, &id,
                                &tier, &copy, NULL, from) == 1);
}

static void take_wants(struct node *n) {
    uint64_t ids[64], wanted = monarch_take_bits(&n->clients->wanted, n->catalog->count, ids, 64);
    for (uint64_t i = 0; i < wanted; i++)
        if (is_in(n, ids[i], MONARCH_ABSENT) && MONARCH_WORD_COPY(entry(n, ids[i])->word) == 0)
            order(n, ids[i]);
}

static void take_fill(struct node *n, const struct monarch_result *r) {
    struct monarch_entry fresh;
    char target[MONARCH_PATH_MAX];
    uint64_t word = monarch_word(MONARCH_PRESENT, 0, 0, r->copy);
    CHECK(r->status == MONARCH_DONE || r->status == MONARCH_SOURCE_CHANGED);
    if (r->status == MONARCH_DONE) {
        count(&filled);
        CHECK(r->bytes == entry(n, r->id)->size);
        CHECK(r->giver == -1 ||
              (r->giver != (int)n->number &&
               (r->giver == (int)owner_of(n, r->id) || r->giver == (int)heir_of(n, r->id))));
        CHECK(r->home == -1 || (is_moved(n, r->id) && r->home == (int)heir_of(n, r->id)));
        if (r->home >= 0 && r->giver == r->home)
            count(&moved);
        if (!r->is_published &&
            monarch_publish(n->writer, 1, &r->id, &word, &r->copy_ino, &r->sum, NULL) != 0) {
            grow(n, 1);
            CHECK(monarch_publish(n->writer, 1, &r->id, &word, &r->copy_ino, &r->sum, NULL) == 0);
        }
        return;
    }
    set_word(n, r->id, monarch_word(MONARCH_ABSENT, 0, 0, 0));
    const char *path = monarch_pool(n->catalog, entry(n, r->id)->path);
    CHECK(monarch_stat_entry(root, 0, path, &fresh, target, sizeof target) == 0);
    monarch_catalog_update(n->writer, r->id, &fresh);
}

static void take_results(struct node *n) {
    struct monarch_result out[32];
    struct monarch_flow flows[1 + NODES];
    uint64_t got = monarch_engine_results(n->engine, out, 32);
    monarch_engine_flows(n->engine, flows, 1 + NODES);
    for (int level = 0; level < MONARCH_LEVELS; level++)
        CHECK(flows[1 + n->number].ns[level] == 0); /* no node asks itself */
    for (uint64_t i = 0; i < got; i++) {
        if (out[i].kind == MONARCH_FILL)
            take_fill(n, &out[i]);
        else
            set_word(n, out[i].id, monarch_word(MONARCH_ABSENT, 0, 0, 0));
    }
    monarch_engine_settle(n->engine);
}

/* Changes the state of a random file: drops its copy (which is then made again), excludes the file,
 * or includes it again. In rare cases, also lets the catalog grow. */
static void change_minds(struct node *n) {
    uint64_t id = below(&n->rng, n->catalog->count), size = entry(n, id)->size;
    if (is_in(n, id, MONARCH_PRESENT)) {
        uint64_t copy = MONARCH_WORD_COPY(entry(n, id)->word);
        uint32_t tier = 0;
        set_word(n, id, monarch_word(MONARCH_ABSENT, 0, 0, copy));
        CHECK(monarch_engine_drop(n->engine, 1, &id, &tier, &copy, &size) == 1);
    } else if (is_in(n, id, MONARCH_BYPASS)) {
        set_word(n, id, monarch_word(MONARCH_ABSENT, 0, 0, 0));
    } else if (is_in(n, id, MONARCH_ABSENT) && MONARCH_WORD_COPY(entry(n, id)->word) == 0 &&
               below(&n->rng, 10) == 0) {
        set_word(n, id, monarch_word(MONARCH_BYPASS, MONARCH_NO_ROOM, 0, 0));
    }
    if (below(&n->rng, 400) == 0 && n->catalog->generation + 4 < CATALOGS)
        grow(n, 1);
}

/* Asks which files this node has begun to keep because peers requested them and the files' owners
 * have no room. Checks that each of these files is one that this node must keep. */
static void take_moved(const struct node *n) {
    uint64_t ids[MONARCH_MOVED], got = monarch_holdings_moved(n->holdings, ids);
    for (uint64_t i = 0; i < got; i++)
        CHECK(is_moved(n, ids[i]) && heir_of(n, ids[i]) == n->number);
}

/* Sets the share of each rank to a random number, which may be 0. */
static void share_out(struct node *n) {
    uint32_t shares[MONARCH_RANKS] = {0};
    for (int rank = 0; rank < RANKS; rank++)
        shares[rank] = (uint32_t)below(&n->rng, 9);
    monarch_engine_shares(n->engine, shares);
}

static void *be_daemon(void *arg) {
    struct node *n = arg;
    uint32_t seen = 0;
    while (!is_over()) {
        __atomic_fetch_add(&n->fills->units, 0, __ATOMIC_RELAXED);
        take_moved(n);
        take_wants(n);
        take_results(n);
        change_minds(n);
        share_out(n);
        monarch_answer_settled(n->clients, n->catalog);
        monarch_holdings_answer(n->holdings);
        seen = monarch_wait_doorbell(n->clients, seen, 2);
    }
    return NULL;
}

/* --- readers ------------------------------------------------------------------------------------
 */

static int open_copy(const struct node *n, uint64_t word) {
    char name[32];
    snprintf(name, sizeof name, "%013llx", (unsigned long long)MONARCH_WORD_COPY(word));
    return openat(n->copies, name, O_RDONLY | O_CLOEXEC);
}

static void read_range(int fd, unsigned k, uint64_t at, uint64_t end) {
    char buffer[16384];
    while (at < end) {
        ssize_t got =
            pread(fd, buffer, end - at < sizeof buffer ? end - at : sizeof buffer, (off_t)at);
        CHECK(got > 0);
        check_bytes(k, 0, at, buffer, (uint64_t)got);
        at += (uint64_t)got;
    }
}

static void read_whole(const struct node *n, uint64_t word, unsigned k) {
    int fd = open_copy(n, word);
    if (fd < 0)
        return; /* the copy was dropped */
    read_range(fd, k, 0, size_of(k));
    close(fd);
    count(&whole_reads);
}

/* Reads a unit as the library does. Another fill may get the slot at any moment, so the slot's word
 * is checked before and after the open. */
static void read_unit(const struct node *n, uint64_t word, unsigned k, uint64_t unit) {
    uint64_t unit_bytes = monarch_unit_of(size_of(k), BLOCK), at = unit * unit_bytes;
    for (int i = 0; i < MONARCH_FILL_SLOTS; i++) {
        const struct monarch_fill *f = &n->fills->fill[i];
        if (__atomic_load_n(&n->fills->word[i], __ATOMIC_ACQUIRE) != word)
            continue;
        int is_done = __atomic_load_n(&f->done[unit / 64], __ATOMIC_ACQUIRE) >> (unit % 64) & 1;
        int fd = open_copy(n, word);
        if (fd < 0)
            return;
        if (is_done && __atomic_load_n(&n->fills->word[i], __ATOMIC_ACQUIRE) == word) {
            uint64_t end = at + unit_bytes < size_of(k) ? at + unit_bytes : size_of(k);
            read_range(fd, k, at, end);
            count(&part_reads);
        }
        close(fd);
        return;
    }
}

static void wait_for(struct node *n, uint64_t id, uint64_t unit, uint64_t *rng) {
    uint64_t i = MONARCH_DEMANDS / 4 + below(rng, MONARCH_DEMANDS * 3 / 4), none = 0;
    uint64_t *at = &n->clients->demand[i],
             d = monarch_demand(id, unit, (uint32_t)below(rng, 4096), (unsigned)below(rng, RANKS));
    if (!__atomic_compare_exchange_n(at, &none, d, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        return;
    monarch_ring_for_demand(n->clients, MONARCH_ORIGINS);
    for (int tries = 0; tries < 200 && __atomic_load_n(at, __ATOMIC_ACQUIRE) == d; tries++)
        pause_us(200);
    __atomic_compare_exchange_n(at, &d, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

static void *be_reader(void *arg) {
    struct node *n = arg;
    uint64_t rng = (uintptr_t)arg ^ (uint64_t)pthread_self();
    char path[PATH_BYTES];
    while (!is_over()) {
        const struct monarch_catalog *c = __atomic_load_n(&n->catalog, __ATOMIC_ACQUIRE);
        unsigned k = (unsigned)(below(&rng, RANGES) * 500 + below(&rng, FILES));
        if (below(&rng, 3) == 0)
            k = k / 500 * 500 + 7; /* a large file */
        name_of(k, path);
        int64_t id = monarch_find(c, 0, path, strlen(path));
        CHECK(id >= 0);
        uint64_t units = (size_of(k) + MONARCH_UNIT - 1) / MONARCH_UNIT;
        uint64_t unit = units ? below(&rng, units) : 0;
        uint64_t word = __atomic_load_n(&monarch_entries(c)[id].word, __ATOMIC_ACQUIRE);
        switch (MONARCH_WORD_STATE(word)) {
        case MONARCH_PRESENT:
            read_whole(n, word, k);
            break;
        case MONARCH_ABSENT:
            monarch_set_bit(&n->clients->wanted, id);
            monarch_doorbell_ring(&n->clients->doorbell);
            pause_us(100);
            break;
        case MONARCH_FILLING:
            if (size_of(k)) {
                wait_for(n, (uint64_t)id, unit, &rng);
                read_unit(n, word, k, unit);
            }
            break;
        default:
            pause_us(100);
        }
    }
    return NULL;
}

/* --- the whole program --------------------------------------------------------------------------
 */

static void begin(struct node *n, const char *tier, uint64_t seed) {
    struct stat st;
    n->copies = open(tier, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(n->copies >= 0 && fstat(root, &st) == 0);
    n->control.source[0].dev = st.st_dev;
    n->clients = calloc(1, sizeof *n->clients);
    n->fills = calloc(1, sizeof *n->fills);
    CHECK(n->clients && n->fills && pthread_mutex_init(&n->lock, NULL) == 0);
    n->writer = monarch_writer_new();
    CHECK(n->writer);
    n->next_copy = 1;
    n->rng = seed + n->number;
    grow(n, 1);
    scan(n);
    CHECK(n->catalog->count < MOST_FILES);
    n->engine = monarch_engine_start(2, 2, 4, BLOCK, n->clients, n->fills);
    CHECK(n->engine);
    monarch_engine_publish(n->engine, n->writer, &n->control);
    monarch_engine_source(n->engine, 0, root);
    monarch_engine_tier(n->engine, 0, n->copies);
    n->holdings = monarch_holdings_new(n->clients, n->fills, BLOCK, content_key);
    CHECK(n->holdings);
    monarch_holdings_source(n->holdings, 0, st.st_dev);
    monarch_holdings_tier(n->holdings, 0, n->copies);
    monarch_holdings_catalog(n->holdings, n->catalog);
    keep(n);
    monarch_engine_holdings(n->engine, n->holdings);
    serve(n);
}

/* Ends a node as the daemon does. Other nodes may still send requests to this node. */
static void end(struct node *n) {
    monarch_engine_holdings(n->engine, NULL);
    end_server(n);
    monarch_holdings_catalog(n->holdings, NULL);
    monarch_engine_stop(n->engine, 60000);
    for (unsigned i = 0; i < NODES; i++)
        if (n->peer[i])
            monarch_peer_free(n->peer[i]);
    monarch_holdings_free(n->holdings);
    for (int i = 0; i < CATALOGS; i++)
        free(n->all[i]);
    monarch_writer_free(n->writer);
    free(n->clients);
    free(n->fills);
    close(n->copies);
}

int main(int argc, char **argv) {
    pthread_t breaking;
    CHECK(argc == 4 + NODES);
    root_path = argv[1];
    for (unsigned i = 0; i < RANGES; i++)
        make_files(root_path, i * 500, FILES);
    root = open(root_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(root >= 0);
    uint64_t seed = strtoull(argv[3 + NODES], NULL, 10), came = 0;
    for (unsigned i = 0; i < NODES; i++) {
        nodes[i].number = i;
        begin(&nodes[i], argv[2 + i], seed);
    }
    for (unsigned i = 0; i < NODES; i++) {
        for (unsigned to = 0; to < NODES; to++) {
            if (to == i)
                continue;
            nodes[i].peer[to] = monarch_peer_new(connect_to, hear, &nodes[to]);
            CHECK(nodes[i].peer[to]);
            monarch_engine_peer(nodes[i].engine, to, nodes[i].peer[to]);
        }
        CHECK(pthread_create(&nodes[i].daemon, NULL, be_daemon, &nodes[i]) == 0);
        for (int r = 0; r < READERS; r++)
            CHECK(pthread_create(&nodes[i].reader[r], NULL, be_reader, &nodes[i]) == 0);
    }
    CHECK(pthread_create(&breaking, NULL, break_things, (void *)(uintptr_t)seed) == 0);
    for (uint64_t ms = 0, all = (uint64_t)(atof(argv[2 + NODES]) * 1000); ms < all; ms += 10)
        pause_us(10000);
    __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
    pthread_join(breaking, NULL);
    for (unsigned i = 0; i < NODES; i++) {
        pthread_join(nodes[i].daemon, NULL);
        for (int r = 0; r < READERS; r++)
            pthread_join(nodes[i].reader[r], NULL);
    }
    for (unsigned i = 0; i < NODES; i++) {
        came += monarch_engine_count(nodes[i].engine, MONARCH_PEER_BYTES);
        end(&nodes[i]);
    }
    for (int i = 0; i < LINKS; i++)
        if (link_fd[i])
            close(link_fd[i]);
    printf("%llu %llu %llu %llu %llu %llu\n", (unsigned long long)filled, (unsigned long long)came,
           (unsigned long long)whole_reads, (unsigned long long)part_reads,
           (unsigned long long)links, (unsigned long long)moved);
    return 0;
}
