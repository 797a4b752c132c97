/* Puts the transport under load, for the sanitizers. The program runs a server and further threads:
 * some request files and compare every byte, some send damaged requests, and one shares files, lets
 * them grow and withdraws them.
 *
 *     stress_peers traffic SECONDS SEED     prints how many ranges arrived, how many did not, and
 *                                           how many connections were accepted
 *     stress_peers later                    requests files that the server cannot open at first
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "peers/connection.h"
#include "shared/xxh3.h"
#include "testing/testing.h"

#define FILES 12
#define BLOCK (16 * 1024)
#define ASKERS 4
#define HOSTILE 2

static struct monarch_peer_table *table;
static struct monarch_peer_server *server;
static int stopping; /* atomic */
static uint64_t came, missed;
static char *content[FILES];
static uint64_t size_of[FILES];
/* The keys of both directions are zeros: this program does not test that they differ. */
static const struct monarch_peer_keys keys;
static const unsigned char content_key[MONARCH_KEY_BYTES] = {1};

static void check(int good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "%s (errno %d)\n", what, errno);
    exit(1);
}

static int is_over(void) { return __atomic_load_n(&stopping, __ATOMIC_ACQUIRE); }

static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
    return *state >> 33;
}

static void pause_us(long us) {
    struct timespec t = {0, us * 1000};
    nanosleep(&t, NULL);
}

/* Makes both ends of a TCP connection over loopback. With a socket pair, options that only TCP has
 * would be untested. */
static void connect_pair(int end[2]) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&at, n) == 0 && listen(listener, 1) == 0, "listen");
    check(getsockname(listener, (struct sockaddr *)&at, &n) == 0, "getsockname");
    end[0] = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(end[0], (struct sockaddr *)&at, n) == 0, "connect");
    end[1] = accept(listener, NULL, NULL);
    check(end[1] >= 0, "accept");
    close(listener);
}

/* Returns the client's end of a new connection to the server; -1 if the server refuses the
 * connection because it already has too many connections. */
static int connected(void) {
    int end[2];
    connect_pair(end);
    if (monarch_peer_server_adopt(server, end[1], &keys) == 0)
        return end[0];
    close(end[0]);
    close(end[1]);
    return -1;
}

static void make_files(uint64_t seed) {
    for (int f = 0; f < FILES; f++) {
        size_of[f] = f == 0 ? 0 : next(&seed) % (12 * BLOCK);
        content[f] = malloc(size_of[f] + 1);
        for (uint64_t i = 0; i < size_of[f]; i++)
            content[f][i] = (char)next(&seed);
    }
}

static int descriptor_of(int f) {
    int fd = memfd_create("file", 0);
    check(fd >= 0 && write(fd, content[f], size_of[f]) == (ssize_t)size_of[f], "memfd");
    return fd;
}

/* --- the thread that shares files ---------------------------------------------------------------
 */

static uint64_t blocks_of(int f) { return (size_of[f] + BLOCK - 1) / BLOCK; }

static uint64_t length_of(int f, uint64_t block) {
    uint64_t at = block * BLOCK;
    return size_of[f] - at < BLOCK ? size_of[f] - at : BLOCK;
}

static uint64_t sum_of(int f, uint64_t block) {
    return monarch_xxh3(content[f] + block * BLOCK, length_of(f, block));
}

static void digest_of(int f, uint64_t block, unsigned char *digest) {
    const char *at = content[f] + block * BLOCK;
    check(monarch_digest_of(content_key, at, length_of(f, block), digest) == 0, "digest");
}

static void share(int f, int fd, uint64_t way) {
    uint64_t sums[16];
    unsigned char digests[16][MONARCH_MAC_BYTES];
    for (uint64_t b = 0; b < blocks_of(f); b++) {
        sums[b] = sum_of(f, b);
        digest_of(f, b, digests[b]);
    }
    int is_whole = way != 0;
    check(monarch_peer_table_share(table, 1, (uint64_t)f, size_of[f], f, fd, BLOCK,
                                   way == 1 ? sums : NULL, way == 1 ? digests[0] : NULL,
                                   is_whole) == 0,
          "share");
    for (uint64_t b = blocks_of(f); !is_whole && b-- > 0;) {
        pause_us(50);
        monarch_peer_table_block(table, 1, (uint64_t)f, b, sum_of(f, b));
    }
}

static void *share_files(void *arg) {
    uint64_t state = (uintptr_t)arg;
    int fd[FILES];
    for (int f = 0; f < FILES; f++)
        fd[f] = descriptor_of(f);
    while (!is_over()) {
        int f = (int)(next(&state) % FILES);
        uint64_t way = next(&state) % 4;
        if (way == 3)
            monarch_peer_table_withdraw(table, 1, (uint64_t)f);
        else
            share(f, fd[f], way);
        pause_us(200);
    }
    for (int f = 0; f < FILES; f++)
        close(fd[f]);
    return NULL;
}

/* --- the threads that request files -------------------------------------------------------------
 */

struct asker {
    pthread_t thread;
    uint64_t state;
    char memory[8][12 * BLOCK];
    uint64_t told; /* bytes for which `arrived` was called in this fetch */
};

static void arrived(void *arg, uint64_t which, uint64_t first, uint64_t bytes, uint64_t sum,
                    const unsigned char *digest) {
    struct asker *a = arg;
    unsigned char own[MONARCH_MAC_BYTES];
    check(monarch_xxh3(a->memory[which] + first, bytes) == sum, "a sum that is not the bytes'");
    check(monarch_digest_of(content_key, a->memory[which] + first, bytes, own) == 0 &&
              memcmp(own, digest, sizeof own) == 0,
          "a digest that is not the bytes'");
    a->told += bytes;
}

static void ask(struct asker *a, struct monarch_peer_link *l, int *is_good) {
    struct monarch_peer_get g[8] = {0};
    uint64_t received = 0;
    a->told = 0;
    for (int i = 0; i < 8; i++) {
        int f = (int)(next(&a->state) % FILES);
        g[i].source = 1;
        g[i].path_hash = (uint64_t)f;
        g[i].size = size_of[f];
        g[i].mtime_ns = f;
        g[i].first = next(&a->state) % (size_of[f] + 1);
        g[i].length = next(&a->state) % (size_of[f] - g[i].first + 1);
        g[i].memory = (uint64_t)(uintptr_t)a->memory[i];
    }
    *is_good = monarch_peer_fetch(l, g, 8, NULL, arrived, a) == 0;
    for (int i = 0; i < 8; i++) {
        check(memcmp(a->memory[i], content[g[i].path_hash] + g[i].first, g[i].received) == 0,
              "wrong bytes that count");
        check(g[i].status != MONARCH_PEER_OK || g[i].received == g[i].length, "too few bytes");
        check(g[i].status != MONARCH_PEER_WRONG_BYTES && g[i].status != MONARCH_PEER_CHANGED &&
                  g[i].status != MONARCH_PEER_REFUSED && g[i].status != MONARCH_PEER_FORGED,
              "a status that cannot be");
        __atomic_fetch_add(g[i].status == MONARCH_PEER_OK ? &came : &missed, 1, __ATOMIC_RELAXED);
        received += g[i].received;
    }
    check(received == a->told, "bytes that nobody was told of");
}

static void *ask_for_files(void *arg) {
    struct asker *a = arg;
    while (!is_over()) {
        int fd = connected(), is_good = 1;
        struct monarch_peer_link *l =
            fd < 0 ? NULL : monarch_peer_link_new(fd, &keys, content_key, 5000, 5000);
        for (int turn = 0; l && is_good && turn < 20 && !is_over(); turn++)
            ask(a, l, &is_good);
        if (l)
            monarch_peer_link_close(l);
    }
    return NULL;
}

/* Sends incomplete and damaged requests, receives no answers, and closes each connection soon. */
static void *say_anything(void *arg) {
    uint64_t state = (uintptr_t)arg;
    struct monarch_mac *says = monarch_mac_new(keys.mine);
    check(says != NULL, "libcrypto");
    while (!is_over()) {
        struct monarch_peer_request q[4];
        int fd = connected();
        if (fd < 0)
            continue;
        for (int i = 0; i < 4; i++) {
            uint64_t f = next(&state) % FILES;
            q[i] = (struct monarch_peer_request){.magic = MONARCH_PEER_REQUEST,
                                                 .source = 1,
                                                 .path_hash = f,
                                                 .size = size_of[f],
                                                 .mtime_ns = (int64_t)f,
                                                 .length = size_of[f],
                                                 .is_awaited = i % 2,
                                                 .is_doubted = i / 2};
            char *bytes = (char *)&q[i];
            monarch_seal(says, (uint64_t)i, bytes, MONARCH_SEALED_OF_REQUEST, NULL, q[i].seal);
            if (next(&state) % 3 == 0)
                bytes[next(&state) % sizeof q[i]] ^= (char)next(&state);
        }
        ssize_t said = send(fd, q, next(&state) % sizeof q, MSG_NOSIGNAL);
        pause_us((long)(next(&state) % 3000) + (said < 0));
        close(fd);
    }
    monarch_mac_free(says);
    return NULL;
}

static int traffic(double seconds, uint64_t seed) {
    struct monarch_peer_bounds bounds = {3, 6, 50, 40, 5, 0};
    struct monarch_peer_counts counts;
    static struct asker asker[ASKERS];
    pthread_t hostile[HOSTILE], sharing;
    make_files(seed);
    table = monarch_peer_table_new();
    server = monarch_peer_server_start(table, &bounds, content_key);
    check(table && server, "start");
    pthread_create(&sharing, NULL, share_files, (void *)(uintptr_t)seed);
    for (int i = 0; i < ASKERS; i++) {
        asker[i].state = seed + (uint64_t)i;
        pthread_create(&asker[i].thread, NULL, ask_for_files, &asker[i]);
    }
    for (int i = 0; i < HOSTILE; i++)
        pthread_create(&hostile[i], NULL, say_anything,
                       (void *)(uintptr_t)(seed * 7 + (uint64_t)i));
    for (double passed = 0; passed < seconds; passed += 0.01) {
        pause_us(10000);
        monarch_peer_server_counts(server, &counts);
        check(counts.connections <= bounds.connections, "more connections than there may be");
    }
    __atomic_store_n(&stopping, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < ASKERS; i++)
        pthread_join(asker[i].thread, NULL);
    for (int i = 0; i < HOSTILE; i++)
        pthread_join(hostile[i], NULL);
    /* Stop the server while the thread that shares files still changes the server's table. */
    monarch_peer_server_stop(table, server);
    pthread_join(sharing, NULL);
    monarch_peer_table_free(table);
    for (int f = 0; f < FILES; f++)
        free(content[f]);
    printf("%llu %llu %llu\n", (unsigned long long)came, (unsigned long long)missed,
           (unsigned long long)counts.accepted);
    return 0;
}

/* --- files that come later ----------------------------------------------------------------------
 */

static int is_there, gives; /* atomic */
static int opened, closed, fd_of_later;

static enum monarch_peer_status open_later(void *arg, const struct monarch_peer_request *wanted,
                                           struct monarch_peer_opened *out) {
    (void)arg;
    if (wanted->path_hash == 2 || !__atomic_load_n(&is_there, __ATOMIC_ACQUIRE))
        return MONARCH_PEER_LATER;
    __atomic_fetch_add(&opened, 1, __ATOMIC_RELAXED);
    *out = (struct monarch_peer_opened){&opened, fd_of_later, 100, BLOCK};
    return MONARCH_PEER_OK;
}

static uint64_t all_available(void *arg, void *file, uint64_t at) {
    (void)arg, (void)file, (void)at;
    return 100;
}

static int no_sum(void *arg, void *file, uint64_t block, uint64_t *sum,
                  struct monarch_digest *digest) {
    (void)arg, (void)file, (void)block, (void)sum, (void)digest;
    return 0;
}

static int all_sound(void *arg, void *file, uint64_t block, const uint64_t *sum) {
    (void)arg, (void)file, (void)block, (void)sum;
    return 1;
}

static int is_fed(void *arg) {
    (void)arg;
    return __atomic_load_n(&gives, __ATOMIC_ACQUIRE);
}

static void count_close(void *arg, void *file) {
    (void)arg, (void)file;
    __atomic_fetch_add(&closed, 1, __ATOMIC_RELAXED);
}

static void *come(void *arg) {
    (void)arg;
    struct monarch_peer_counts counts = {0};
    while (counts.waiting == 0) {
        pause_us(1000);
        monarch_peer_server_counts(server, &counts);
    }
    __atomic_store_n(&is_there, 1, __ATOMIC_RELEASE);
    monarch_peer_wake(server, 0, 1);
    return NULL;
}

static int later(void) {
    struct monarch_peer_files files = {NULL,   open_later, all_available, is_fed,
                                       no_sum, all_sound,  count_close};
    struct monarch_peer_bounds bounds = {2, 4, 5000, 5000, 300, 0};
    char memory[3][100], expected[100];
    pthread_t coming;
    memset(expected, 'x', sizeof expected);
    fd_of_later = memfd_create("later", 0);
    check(write(fd_of_later, expected, sizeof expected) == sizeof expected, "memfd");
    server = monarch_peer_serve(&files, &bounds, content_key);
    check(server != NULL, "start");
    pthread_create(&coming, NULL, come, NULL);
    struct monarch_peer_link *l =
        monarch_peer_link_new(connected(), &keys, content_key, 5000, 5000);
    struct monarch_peer_get g[3] = {{0}};
    for (int i = 0; i < 3; i++) {
        g[i].path_hash = (uint64_t)i + 1;
        g[i].size = g[i].length = 100;
        g[i].memory = (uint64_t)(uintptr_t)memory[i];
    }
    check(monarch_peer_fetch(l, g, 3, NULL, NULL, NULL) == 0, "fetch");
    check(g[0].status == MONARCH_PEER_OK && memcmp(memory[0], expected, 100) == 0, "came later");
    check(g[1].status == MONARCH_PEER_TIMEOUT, "never came");
    check(g[2].status == MONARCH_PEER_OK, "the link goes on");
    __atomic_store_n(&gives, 1, __ATOMIC_RELEASE);
    check(monarch_peer_fetch(l, &g[1], 1, NULL, NULL, NULL) == 0, "fetch again");
    check(g[1].status == MONARCH_PEER_COMING, "will come");
    pthread_join(coming, NULL);
    monarch_peer_link_close(l);
    monarch_peer_end(server);
    close(fd_of_later);
    check(opened == 2 && closed == 2, "every file that was opened is closed");
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "traffic") == 0)
        return traffic(atof(argv[2]), strtoull(argv[3], NULL, 10));
    if (argc == 2 && strcmp(argv[1], "later") == 0)
        return later();
    return 2;
}
