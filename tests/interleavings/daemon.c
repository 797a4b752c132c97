#include "daemon.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "acts.h"
#include "clients/demands.h"
#include "copy/flow.h"
#include "engine/schedule.h"
#include "preload/session/segments.h"
#include "publish/writer.h"
#include "scheduler.h"

#define BLOCK_BYTES (4 * MONARCH_UNIT)
/* Time limit of end_daemon [ns]. It is longer than the duration of a claim plus the time until the
 * engine notices that the claim has ended. */
#define LIMIT_NS 3000000000ULL
#define STOP_MS 5000

static struct monarch_engine *engine;
static uint64_t next_copy;
static int sockets[MONARCH_HANDOVER_SOCKETS], roots[2];

static int listen_at(unsigned number) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s/handovers.%u", monarch_session_dir(), number);
    syscall(SYS_unlinkat, AT_FDCWD, at.sun_path, 0);
    int fd = (int)syscall(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    EXPECT(syscall(SYS_bind, fd, &at, sizeof at) == 0);
    return fd;
}

/* Excludes some fields from the scheduling: an access to such a field is no step. So fewer orders
 * of steps must be run. It does not matter when these fields are accessed. Some of them contain
 * measurements, which no thread here reads. The others serve readers that wait for a unit, and no
 * reader here waits for one. */
static void ignore_what_nobody_reads(const struct pool *p) {
    ignore_memory(p->shared.endpoint, sizeof *p->shared.endpoint);
    ignore_memory(p->shared.counts, sizeof p->shared.counts);
    ignore_memory(&site.fills->units, 2 * sizeof site.fills->units);
    ignore_memory(site.clients->demand, sizeof site.clients->demand);
}

void start_daemon(void) {
    next_copy = 1;
    site.control->handed_bytes = MOST_BYTES;
    engine = monarch_engine_start(1, 1, 0, BLOCK_BYTES, site.clients, site.fills);
    monarch_engine_publish(engine, site.writer, site.control);
    roots[0] = raw_open(path_of("source", ""), O_RDONLY | O_DIRECTORY);
    roots[1] = raw_open(path_of("tier", ""), O_RDONLY | O_DIRECTORY);
    monarch_engine_source(engine, 0, roots[0]);
    monarch_engine_tier(engine, TIER, roots[1]);
    for (unsigned i = 0; i < FILES; i++)
        sockets[i] = listen_at((unsigned)(site.ids[i] % MONARCH_HANDOVER_SOCKETS));
    EXPECT(monarch_engine_handovers(engine, sockets, FILES) == 0);
    ignore_what_nobody_reads((const struct pool *)engine);
}

/* --- an iteration of the daemon's loop ----------------------------------------------------------
 */

static unsigned state_of(unsigned file) {
    return MONARCH_WORD_STATE(__atomic_load_n(&entry_of(file)->word, __ATOMIC_SEQ_CST));
}

static void submit(unsigned file, int in_use) {
    uint32_t tier = TIER;
    set_word(file, MONARCH_FILLING, (unsigned)next_copy);
    EXPECT(monarch_engine_submit(engine, site.catalog, MONARCH_FILL, in_use, 1, &site.ids[file],
                                 &tier, &next_copy, NULL, NULL) == 1);
    next_copy++;
}

void order_ahead(unsigned file) { submit(file, 0); }

/* Publishes a copy that the engine has not published, because another thread had the writer's lock
 * for too long. */
static void publish(const struct monarch_result *r) {
    pthread_mutex_lock(&site.writer->lock);
    EXPECT(monarch_publish_result(site.writer, site.control, site.clients, r));
    pthread_mutex_unlock(&site.writer->lock);
}

/* Takes the results of the engine's orders. Each order must have succeeded, and the engine itself
 * must have published the copy that the order made, unless an interrupt has held up a thread. */
static void take_results(void) {
    struct monarch_result r[FILES];
    uint64_t n = monarch_engine_results(engine, r, FILES);
    for (uint64_t i = 0; i < n; i++) {
        EXPECT(r[i].status == MONARCH_DONE && (r[i].is_published || held_up_ns()));
        if (!r[i].is_published)
            publish(&r[i]);
    }
    monarch_engine_settle(engine);
}

static int is_wanted(unsigned file) {
    uint64_t *word = &site.clients->wanted.word[site.ids[file] / 64];
    return monarch_is_requested(site.clients, site.ids[file]) &&
           __atomic_fetch_and(word, ~(1ULL << site.ids[file] % 64), __ATOMIC_SEQ_CST);
}

static int orders_what_is_wanted(void) {
    int n = 0;
    for (unsigned file = 0; file < FILES; file++)
        if (is_wanted(file) && state_of(file) == MONARCH_ABSENT) {
            submit(file, 1);
            n++;
        }
    return n;
}

/* Runs one iteration of the loop. Returns whether there was nothing to do. */
static int iterate(uint64_t granted_bytes, uint32_t rest_ns) {
    static struct monarch_placed placed[MONARCH_PLACED];
    struct monarch_room room = {.bytes = granted_bytes,
                                .inodes = MOST_COPIES,
                                .block_bytes = 4096,
                                .entry_bytes = 512,
                                .is_part = 1};
    uint64_t n = monarch_engine_end_grant(engine, placed);
    next_copy += n;
    take_results();
    n += (uint64_t)orders_what_is_wanted();
    n += monarch_engine_pending(engine, 0, MONARCH_ORIGINS);
    n += monarch_engine_pending(engine, 1, MONARCH_ORIGINS);
    monarch_engine_grant(engine, 1, &room, next_copy, 0);
    monarch_engine_rest(engine, rest_ns / 1000);
    return n == 0;
}

void run_iteration(uint64_t granted_bytes, uint32_t rest_ns) { iterate(granted_bytes, rest_ns); }

/* --- the daemon's end ---------------------------------------------------------------------------
 */

/* Returns whether programs want no more files, and none of their descriptors is on its way to the
 * daemon, in the daemon's table, or in use by an order. */
static int is_settled(void) {
    for (unsigned file = 0; file < FILES; file++) {
        uint64_t id = site.ids[file], claim = *monarch_claim_at(site.clients, id);
        if (monarch_is_requested(site.clients, id) || claim & MONARCH_CLAIM_HANDED)
            return 0;
    }
    return !handed_descriptors();
}

void end_daemon(uint64_t granted_bytes, uint32_t rest_ns) {
    uint64_t until_ns = now_ns() + LIMIT_NS;
    while (!iterate(granted_bytes, rest_ns) || !is_settled())
        EXPECT(now_ns() < until_ns);
    EXPECT(monarch_engine_stop(engine, STOP_MS) == 0);
    EXPECT(!open_daemon_descriptors());
    for (unsigned file = 0; file < FILES; file++)
        syscall(SYS_close, sockets[file]);
    syscall(SYS_close, roots[0]);
    syscall(SYS_close, roots[1]);
}
