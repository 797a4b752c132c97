/* Tests engine/engine.c: how the engine starts and stops, how Python takes results, and how Python
 * sets parameters. */
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The number of the allocation that fails; -1: none. */
static int allocations, fails_at = -1;
static void *scarce_calloc(size_t n, size_t size) {
    return allocations++ == fails_at ? NULL : calloc(n, size);
}
#include "copy/fill.h"
#include "copy/source_file.h"
#include "engine/schedule.h"
#include "engine/work.h"
#include "peers/peers.h"
#include "shared/clock.h"
/* If `starts` is negative, start_threads really starts the threads. Otherwise it starts none and
 * returns `starts`, as if it had started this number of threads for the sources. */
static int starts, rings, can_drop, hung_up;
static int start_threads(struct pool *p, int peer_threads) {
    return starts < 0 ? monarch_start_threads(p, peer_threads) : starts;
}
static void unlock_and_ring(struct pool *p) {
    rings++;
    pthread_mutex_unlock(&p->lock);
}
static int can_drop_behind(void) { return can_drop; }
static void hang_up(struct monarch_peer *p) { hung_up++; }
/* How many fills were ended as failed. When the engine stops, each unfinished fill must be ended in
 * this way. */
static int ended_fills;
static void end_fill(struct monarch_engine *e, struct fill *f) {
    ended_fills += f->failed;
    free(f);
}
static int options[16];
static int note_option(int option, int value) {
    options[option < 0 ? -option : option] = value;
    return 1;
}
/* policy, slice_ns: the scheduling policy and the time slice that are reported for every thread. If
 * `policy` is -1, the real kernel answers. If it is -2, the calls for scheduling attributes fail,
 * as in a kernel that lacks them. set: the attributes that were set last, in the kernel's format.
 * sets: how often attributes were set. */
static int policy = -1, sets;
static uint32_t slice_ns;
static uint64_t set[6];
static long attributes(long number, ...) {
    va_list all;
    va_start(all, number);
    int thread = va_arg(all, int);
    uint32_t *them = va_arg(all, uint32_t *);
    va_end(all);
    if (policy == -1)
        return syscall(number, thread, them, number == SYS_sched_getattr ? sizeof set : 0, 0);
    if (number == SYS_sched_getattr && policy != -2) {
        memset(them, 0, sizeof set);
        them[1] = (uint32_t)policy;
        them[4] = 7; /* the niceness */
        them[6] = slice_ns;
        return 0;
    }
    sets += number == SYS_sched_setattr;
    if (number == SYS_sched_setattr)
        memcpy(set, them, sizeof set);
    return -1;
}
#define syscall(number, ...) \
    ((number) == SYS_futex ? syscall(number, __VA_ARGS__) : attributes(number, __VA_ARGS__))
#define mallopt note_option
#define calloc scarce_calloc
#define monarch_start_threads start_threads
#define monarch_unlock_and_ring unlock_and_ring
#define monarch_can_drop_behind can_drop_behind
#define monarch_peer_hang_up hang_up
#define monarch_fill_end end_fill
#include "engine/engine.c"
#undef calloc
#undef monarch_start_threads

#include "checks.h"

static struct monarch_engine *e;
static struct pool *p;
static struct monarch_clients *clients;
static struct monarch_fills *fills;
static int before;

static void make(int threads, int peer_threads) {
    before = open_descriptors();
    clients = calloc(1, sizeof *clients);
    fills = calloc(1, sizeof *fills);
    rings = hung_up = ended_fills = 0;
    e = monarch_engine_start(threads, 5, peer_threads, 4096, clients, fills);
    p = (struct pool *)e;
}

/* Makes an engine without threads. */
static void make_lone(void) {
    starts = 1;
    make(0, 0);
    CHECK(e);
}

static void done(void) {
    SAME(monarch_engine_stop(e, 20000), 0);
    free(clients);
    free(fills);
    SAME(open_descriptors(), before);
}

/* Makes an order with a handed-over descriptor, block sums and a slot; all of these must be
 * freed. */
static struct job *new_job(uint32_t kind, int in_use, int peer) {
    struct job *job = calloc(1, sizeof *job + 1);
    *job = (struct job){.slot = -1, .handed = open("/dev/null", O_RDONLY | O_CLOEXEC)};
    job->peer[0] = peer;
    job->result = (struct monarch_result){.kind = kind, .in_use = (uint32_t)in_use, .giver = -1};
    job->result.block_sums = malloc(8);
    return job;
}

/* --- start and stop --------------------------------------------------------------------------- */

/* In a new engine, all slots are free. The widths and shares are those that it was started with. */
TEST(a_new_engine_is_as_it_was_asked_for) {
    for (can_drop = 0; can_drop < 2; can_drop++) {
        starts = 2;
        make(3, 7);
        CHECK(e && e->block_bytes == 4096 && e->clients == clients && e->fills == fills);
        CHECK(e->serve_readers == monarch_serve_readers && e->endpoint);
        SAME(e->kept_sources, can_drop ? 0 : UINT32_MAX);
        SAME(p->most_threads, 3);
        CHECK(p->width[MONARCH_FROM_SOURCE] == 5 && p->width[MONARCH_FROM_PEER] == 7);
        SAME(p->free_slots, MONARCH_FILL_SLOTS);
        for (int i = 0; i < MONARCH_FILL_SLOTS; i++) /* slot 0 is used first */
            SAME(p->slot[i], MONARCH_FILL_SLOTS - 1 - i);
        for (int origin = 0; origin < MONARCH_ORIGINS; origin++)
            CHECK(p->fair[origin].share == p->share);
        done();
    }
}

/* If there is no memory for the engine, or no thread can be started, no engine is made and nothing
 * is left behind. */
TEST(an_engine_starts_or_leaves_nothing) {
    for (int way = 0; way < 3; way++) {
        allocations = 0;
        fails_at = way;
        starts = 0;
        make(1, 1);
        CHECK(!e);
        free(clients);
        free(fills);
    }
}

/* When the engine stops, all its threads end, both those for the sources and those for peers. This
 * must also happen if a client has written wrong counts of sleeping threads into the shared memory.
 * Connections to peers are cut first, because a thread may wait for a peer. */
TEST(an_engine_stops_and_frees_everything) {
    starts = -1;
    make(2, 2);
    CHECK(e && p->threads == 2 && p->peer_threads == 2);
    clients->engine[0].sleeping = clients->engine[1].sleeping = 0;
    int peers[2];
    monarch_engine_peer(e, 0, (struct monarch_peer *)&peers[0]);
    monarch_engine_peer(e, MONARCH_MAX_PEERS - 1, (struct monarch_peer *)&peers[1]);
    uint64_t since = monarch_now_ns();
    done();
    CHECK(monarch_now_ns() - since < 10000000000);
    SAME(hung_up, 2);
}

/* When an engine stops, the orders in all queues are freed. So are the unfinished fills, whose
 * copies are not used. */
TEST(no_order_is_left_when_an_engine_stops) {
    make_lone();
    struct queue *all[] = {&p->urgent,
                           &p->in_use[0],
                           &p->in_use[1],
                           &p->to_page_in,
                           &p->normal[0],
                           &p->normal[1],
                           &p->done,
                           &p->told,
                           &p->late[0].of[0],
                           &p->late[1].of[1],
                           &p->late[0].of[MONARCH_MAX_PEERS - 1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int n = 0; n < 2; n++)
            monarch_push(all[i], new_job(MONARCH_FILL, 0, -1));
    for (int i = 0; i < 2; i++) {
        struct fill *f = calloc(1, sizeof *f);
        f->job = new_job(MONARCH_FILL, 0, -1);
        monarch_add_fill(p, f);
    }
    p->grant.home = malloc(8);
    done();
    SAME(ended_fills, 2);
}

static char steps[8];
static void note(const char *step) { strcat(steps, step); }
static void listener_ends(struct pool *of) {
    CHECK(of == p && of->shared.stopping);
    note("e");
}
static int listener_left;
static int listener_joins(struct pool *of, const struct timespec *until) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    CHECK(of == p && until->tv_sec > now.tv_sec + 15 && until->tv_sec < now.tv_sec + 25);
    note("j");
    return listener_left;
}
static void listener_frees(struct pool *of) { note("f"); }

/* When an engine stops, its listener first stops accepting descriptors. Then the listener's threads
 * are joined, and finally the listener is freed. If some of these threads hang, the stop returns
 * their number, and nothing is freed. */
TEST(a_listener_ends_with_the_engine) {
    const struct listener listener = {
        .ends = listener_ends, .joins = listener_joins, .frees = listener_frees};
    make_lone();
    p->listener = &listener;
    listener_left = 3;
    SAME(monarch_engine_stop(e, 20000), 3);
    CHECK(strcmp(steps, "ej") == 0);
    steps[0] = 0;
    listener_left = 0;
    done();
    CHECK(strcmp(steps, "ejf") == 0);
}

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static void *hang(void *arg) {
    pthread_mutex_lock(&held);
    pthread_mutex_unlock(&held);
    return NULL;
}

/* If threads hang until the time limit of the stop has passed, the stop returns their number.
 * Threads for the sources and threads for peers both count. */
TEST(threads_that_hang_are_counted) {
    starts = 1;
    make(2, 2);
    pthread_mutex_lock(&held);
    p->threads = 2;
    p->peer_threads = 2;
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&p->worker[i].thread, NULL, hang, NULL) == 0);
    SAME(monarch_engine_stop(e, 1), 4);
    pthread_mutex_unlock(&held);
    done();
}

/* --- results ---------------------------------------------------------------------------------- */

/* Python takes results in the order in which they were queued, but no more than fit into its array.
 * Orders whose results were taken no longer count as pending. While results are left, the daemon's
 * bell still counts as rung. */
TEST(results_are_taken_once) {
    make_lone();
    struct monarch_result out[4];
    for (uint64_t i = 0; i < 5; i++) {
        struct job *job = new_job(MONARCH_FILL, i % 2, i == 3 ? 9 : -1);
        job->result.id = i;
        monarch_count(p, job, 1);
        monarch_push(&p->done, job);
    }
    SAME(monarch_engine_pending(e, 0, MONARCH_FROM_SOURCE), 3);
    SAME(monarch_engine_pending(e, 1, MONARCH_FROM_SOURCE), 1);
    SAME(monarch_engine_pending(e, 7, MONARCH_FROM_PEER), 1);
    SAME(monarch_engine_pending(e, 0, MONARCH_FROM_PEER), 0);
    SAME(monarch_engine_pending(e, 1, MONARCH_ORIGINS), 2);
    SAME(monarch_engine_reads_sources(e), 1);
    SAME(monarch_engine_results(e, out, 4), 4);
    for (uint64_t i = 0; i < 4; i++)
        SAME(out[i].id, i);
    SAME(p->rung, 1);
    SAME(monarch_engine_pending(e, 0, MONARCH_ORIGINS), 1);
    SAME(monarch_engine_pending(e, 1, MONARCH_ORIGINS), 0);
    SAME(monarch_engine_reads_sources(e), 1);
    SAME(monarch_engine_results(e, out, 4), 1);
    CHECK(out[0].id == 4 && p->rung == 0 && p->told.length == 5 && !p->done.length);
    SAME(monarch_engine_reads_sources(e), 0);
    SAME(monarch_engine_results(e, out, 4), 0);
    p->source_fills = 2;
    SAME(monarch_engine_reads_sources(e), 1);
    done();
}

/* After Python has handled results, their orders and slots are freed. If fills from peers had to
 * wait because too few slots were free, the threads are woken. */
TEST(settled_results_free_their_slots) {
    for (unsigned free_slots = 0; free_slots <= MONARCH_SLOTS_OF_SOURCE + 1; free_slots++)
        for (int has_slot = 0; has_slot < 2; has_slot++) {
            make_lone();
            rings = 0;
            int descriptors = open_descriptors();
            p->free_slots = free_slots;
            struct job *job = new_job(MONARCH_FILL, 0, -1), *left = new_job(MONARCH_FILL, 0, -1);
            job->slot = has_slot ? 17 : -1;
            fills->word[17] = 5;
            monarch_push(&p->told, job);
            monarch_push(&p->told, new_job(MONARCH_DROP, 0, -1));
            monarch_push(&p->done, left);
            monarch_engine_settle(e);
            SAME(p->free_slots, free_slots + (unsigned)has_slot);
            SAME(fills->word[17], has_slot ? 0 : 5);
            SAME(p->told.length, 0);
            SAME(open_descriptors(), descriptors + 1); /* that of `left` */
            SAME(rings, has_slot && free_slots <= MONARCH_SLOTS_OF_SOURCE);
            done();
        }
}

/* --- parameters ------------------------------------------------------------------------------- */

/* The width limits how many threads at a time do work for which no reader waits. A new width wakes
 * the threads, because more of them may work now. */
TEST(a_new_width_wakes_the_threads) {
    make_lone();
    rings = 0;
    monarch_engine_width(e, 11, 12, 1);
    CHECK(p->width[MONARCH_FROM_SOURCE] == 11 && p->width[MONARCH_FROM_PEER] == 12 && p->rests);
    SAME(rings, 1);
    monarch_engine_width(e, 1, 2, 0);
    CHECK(!p->rests && rings == 2);
    done();
}

/* The share of a rank has an upper limit, so that virtual times do not overflow. Rank 0 stands for
 * readers without a rank, so it gets no share. */
TEST(shares_have_a_limit) {
    static uint32_t shares[MONARCH_RANKS] = {9, 1, UINT16_MAX - 1, UINT16_MAX, UINT16_MAX + 1};
    make_lone();
    shares[MONARCH_RANKS - 1] = UINT32_MAX;
    monarch_engine_shares(e, shares);
    CHECK(p->share[0] == 0 && p->share[1] == 1 && p->share[2] == UINT16_MAX - 1);
    CHECK(p->share[3] == UINT16_MAX && p->share[4] == UINT16_MAX && p->share[5] == 0);
    SAME(p->share[MONARCH_RANKS - 1], UINT16_MAX);
    done();
}

/* Each call that sets a parameter of the engine changes no other parameter. */
TEST(parameters_are_set_one_by_one) {
    make_lone();
    struct monarch_writer *w = monarch_writer_new();
    struct monarch_control control;
    int other;
    monarch_engine_publish(e, w, &control);
    CHECK(e->writer == w && e->control == &control);
    monarch_engine_await(e, 1);
    SAME(p->awaits_results, 1);
    monarch_engine_await(e, 0);
    SAME(p->awaits_results, 0);
    monarch_engine_source(e, 2, 71);
    CHECK(p->roots[2] == 71 && !p->roots[1] && !p->roots[3]);
    monarch_engine_tier(e, 1, 72);
    CHECK(p->copies[1] == 72 && !p->copies[0] && !p->copies[2]);
    monarch_engine_stamp(e, 0, 5);
    monarch_engine_stamp(e, 3, 6);
    CHECK(p->stamped == 9 && p->salt == 6);
    monarch_engine_holdings(e, (struct monarch_holdings *)&other);
    CHECK(e->holdings == (struct monarch_holdings *)&other);
    monarch_engine_limit(e, 1000, 20);
    CHECK(e->bytes_per_s == 1000 && e->ops_per_s == 20);
    e->counts[1] = 8;
    CHECK(monarch_engine_count(e, 1) == 8 && monarch_engine_count(e, 0) == 0);
    monarch_writer_free(w);
    done();
}

/* For each peer, the engine reports the number of orders that ask this peer first. The array gets
 * as many numbers as the caller has asked for, but no more than there are peers. */
TEST(the_queues_of_peers_are_told) {
    make_lone();
    static uint32_t lengths[MONARCH_MAX_PEERS + 1];
    p->asked[0] = 4;
    p->asked[MONARCH_MAX_PEERS - 1] = 6;
    lengths[1] = lengths[MONARCH_MAX_PEERS] = 9;
    monarch_engine_queues(e, lengths, 1);
    CHECK(lengths[0] == 4 && lengths[1] == 9);
    monarch_engine_queues(e, lengths, MONARCH_MAX_PEERS + 1);
    CHECK(lengths[1] == 0 && lengths[MONARCH_MAX_PEERS - 1] == 6 &&
          lengths[MONARCH_MAX_PEERS] == 9);
    done();
}

/* The daemon asks the kernel for SCHED_BATCH and short time slices. Its niceness does not change.
 * If the kernel does not support short slices, nothing changes. If syncfs fails, monarch_syncfs
 * returns the errno as a negative number. */
TEST(the_kernel_is_asked_for_batch_scheduling) {
    struct scheduling was = {0}, is = {0};
    SAME(syscall(SYS_sched_getattr, 0, &was, sizeof was, 0), 0);
    monarch_set_scheduling();
    SAME(syscall(SYS_sched_getattr, 0, &is, sizeof is, 0), 0);
    CHECK(is.nice == was.nice && is.flags == was.flags);
    SAME(is.policy, was.runtime_ns ? SCHED_BATCH : was.policy);
    SAME(is.runtime_ns, was.runtime_ns ? SLICE_NS : 0);
    SAME(monarch_syncfs(-1), -EBADF);
    int here = open(".", O_RDONLY | O_CLOEXEC);
    SAME(monarch_syncfs(here), 0);
    close(here);
}

/* The C library is told to return large blocks to the kernel, and to use few arenas. */
TEST(the_memory_of_a_scan_is_given_back) {
    monarch_limit_malloc();
    SAME(options[-M_MMAP_THRESHOLD], 128 * 1024);
    SAME(options[-M_ARENA_MAX], 2);
}

/* The scheduling of a thread changes only if its policy is SCHED_OTHER or SCHED_BATCH, and if the
 * kernel reports a time slice. The other policies were chosen on purpose. */
TEST(the_scheduling_changes_only_where_slices_can_be_set) {
    const int policies[] = {SCHED_OTHER, SCHED_BATCH, SCHED_IDLE, SCHED_FIFO, SCHED_RR, -2};
    for (int i = 0; i < 12; i++) {
        policy = policies[i % 6];
        slice_ns = i < 6 ? 2800000 : 0;
        sets = 0;
        memset(set, 0, sizeof set);
        monarch_set_scheduling();
        SAME(sets, i < 2);
        struct scheduling s;
        memcpy(&s, set, sizeof s);
        SAME(s.runtime_ns, i < 2 ? SLICE_NS : 0);
        CHECK(i >= 2 || (s.policy == SCHED_BATCH && s.nice == 7 && s.deadline_ns == 0));
    }
}
