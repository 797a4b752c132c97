/* Makes the parts of the daemon while one resource is lacking: memory, a thread or a descriptor.
 *
 *   scarce PART DIRECTORY
 *
 * Makes and removes the part again and again. The first time, the first call for a resource fails;
 * the second time, the second call fails; and so on, until no call fails any more. Prints how many
 * calls have failed. The exit status is not 0 if the part has ever left memory or a descriptor
 * behind. It is also not 0 if the part was made although the thread that makes it was refused
 * memory. The scan is exempt from the second check, because it may find everything without that
 * memory. Memory that is refused to one of the part's own threads does not matter, because the
 * other threads do the work. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "native.h"
#include "peers/mac.h"
#include "peers/peers.h"
#include "scanning.h"
#include "serving/serving.h"
#include "simulator/simulator.h"

/* left: the number of calls before the one that fails (negative: none fails); failed: the number of
 * calls that have failed; live: the number of allocations in use. All three are atomic. */
static long left, failed, live;
static long failed_memory; /* calls that failed with ENOMEM in the thread with is_maker == 1 */
static __thread int is_maker;
static long turn; /* number of the call that fails, counted from 0 */

/* Returns whether the present call fails. */
static int fails(int error) {
    if (__atomic_fetch_sub(&left, 1, __ATOMIC_SEQ_CST) != 0)
        return 0;
    __atomic_fetch_add(&failed, 1, __ATOMIC_SEQ_CST);
    failed_memory += is_maker && error == ENOMEM;
    errno = error;
    return 1;
}

static void *counted(void *made) {
    if (made)
        __atomic_fetch_add(&live, 1, __ATOMIC_SEQ_CST);
    return made;
}

/* Defines the wrapper of the function `name`. If the present call is the one that must fail, the
 * wrapper sets errno to `error` and returns `lack`. Otherwise, it calls the function. */
#define SCARCE(result, name, error, lack, count, declared, passed) \
    result __real_##name declared;                                 \
    result __wrap_##name declared;                                 \
    result __wrap_##name declared { return fails(error) ? lack : count(__real_##name passed); }

SCARCE(void *, malloc, ENOMEM, NULL, counted, (size_t n), (n))
SCARCE(void *, calloc, ENOMEM, NULL, counted, (size_t n, size_t each), (n, each))
SCARCE(void *, aligned_alloc, ENOMEM, NULL, counted, (size_t to, size_t n), (to, n))
SCARCE(int, epoll_create1, EMFILE, -1, , (int flags), (flags))
SCARCE(int, eventfd, EMFILE, -1, , (unsigned n, int flags), (n, flags))
SCARCE(int, pthread_create, EAGAIN, EAGAIN, ,
       (pthread_t * thread, const pthread_attr_t *attributes, void *(*begin)(void *), void *arg),
       (thread, attributes, begin, arg))

void __real_free(void *p);
void __wrap_free(void *p);
void __wrap_free(void *p) {
    if (p)
        __atomic_fetch_sub(&live, 1, __ATOMIC_SEQ_CST);
    __real_free(p);
}

static int descriptors(void) {
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (d && readdir(d))
        n++;
    closedir(d);
    return n;
}

static void wrong(const char *what) {
    fprintf(stderr, "%s, while call %ld fails\n", what, turn);
    exit(1);
}

/* --- the parts: each function makes a part, removes it, and returns whether it was made ---------
 */

static const unsigned char key[MONARCH_KEY_BYTES];
static struct monarch_clients *clients;
static struct monarch_fills *fills;

static int engine(const char *directory) {
    (void)directory;
    struct monarch_engine *e = monarch_engine_start(4, 2, 2, 1 << 20, clients, fills);
    if (e && monarch_engine_stop(e, 60000) != 0)
        wrong("the engine does not stop");
    return e != NULL;
}

static int server(const char *directory) {
    (void)directory;
    struct monarch_peer_bounds bounds = {2, 8, 1000, 1000, 1000, 0};
    struct monarch_holdings *h = monarch_holdings_new(clients, fills, 1 << 20, key);
    struct monarch_peer_server *s = h ? monarch_holdings_serve(h, &bounds) : NULL;
    if (s)
        monarch_holdings_stop(h, s);
    if (h)
        monarch_holdings_free(h);
    return s != NULL;
}

static int peer(const char *directory) {
    (void)directory;
    struct monarch_peer *p = monarch_peer_new(NULL, NULL, NULL);
    if (p)
        monarch_peer_free(p);
    return p != NULL;
}

static int link_to_peer(const char *directory) {
    (void)directory;
    struct monarch_peer_keys keys = {{0}, {0}};
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        wrong("socketpair has failed");
    struct monarch_peer_link *l = monarch_peer_link_new(ends[0], &keys, key, 100, 100);
    if (l)
        monarch_peer_link_close(l);
    else
        close(ends[0]); /* there is no link, so nothing else closes this end */
    close(ends[1]);
    return l != NULL;
}

static int simulator(const char *directory) {
    (void)directory;
    uint32_t ranks[] = {1, 2}, threads[] = {2, 1};
    double rates[] = {1, 1, 1, 1};
    int32_t owner[] = {0, 1, -1};
    int64_t sizes[] = {1, 2, 3};
    struct monarch_sim_result result = {0};
    struct monarch_sim_job job = {.nodes = 2,
                                  .most_ranks = 2,
                                  .classes = 2,
                                  .files = 3,
                                  .ranks = ranks,
                                  .epochs = 1,
                                  .steps = 1,
                                  .batch = 1,
                                  .sizes = sizes,
                                  .read_rate = rates,
                                  .write_rate = rates,
                                  .threads = threads,
                                  .staging = rates,
                                  .network = rates,
                                  .pfs_link = rates,
                                  .pfs = rates,
                                  .compute = rates,
                                  .preprocess = rates,
                                  .owner = owner};
    struct monarch_sim *s = monarch_sim_new(&job, &result);
    if (s)
        monarch_sim_free(s);
    return s != NULL;
}

/* A scan that lacks memory must find everything, or must count an error. */
static int scan(const char *directory) {
    uint32_t doorbell = 0;
    uint64_t entries = 0;
    static uint64_t whole; /* number of entries found by the first scan, in which no call fails */
    int error = 0, root = open(directory, O_RDONLY | O_DIRECTORY);
    struct monarch_scan *s = monarch_scan_start(root, 0, 1, 0, &doorbell);
    if (s && !scan_to_end(s, &entries))
        wrong("the scan does not end");
    whole = whole ? whole : entries;
    uint64_t errors = s ? monarch_scan_errors(s, &error) : 1;
    if (!errors && entries != whole)
        wrong("the scan has missed entries without an error");
    if (s && monarch_scan_stop(s, 60000) != 0)
        wrong("the scan does not stop");
    close(root);
    return !errors;
}

static const struct {
    const char *name;
    int (*make)(const char *directory);
} parts[] = {{"engine", engine},     {"server", server},       {"peer", peer},
             {"link", link_to_peer}, {"simulator", simulator}, {"scan", scan}};

int main(int argc, char **argv) {
    size_t part = 0;
    is_maker = 1;
    left = -1;
    clients = calloc(1, sizeof *clients);
    fills = calloc(1, sizeof *fills);
    while (part < sizeof parts / sizeof *parts && (argc < 3 || strcmp(parts[part].name, argv[1])))
        part++;
    if (part == sizeof parts / sizeof *parts || !clients || !fills || !monarch_mac_is_there())
        return 2;
    /* No call fails in this first round. It loads the libraries that stay loaded afterwards. */
    if (!parts[part].make(argv[2]))
        wrong("the part was not made");
    for (int has_failed = 1; has_failed; turn++) {
        long before = failed, memory_before = failed_memory, live_before = live;
        int open_before = descriptors();
        left = turn;
        int is_made = parts[part].make(argv[2]);
        left = -1;
        has_failed = failed > before;
        if (live != live_before)
            wrong("the part has left memory behind");
        if (descriptors() != open_before)
            wrong("the part has left a descriptor behind");
        if (is_made && failed_memory > memory_before && parts[part].make != scan)
            wrong("the part was made although it got no memory");
        if (!is_made && !has_failed)
            wrong("the part was not made");
    }
    printf("%ld\n", failed);
    return 0;
}
