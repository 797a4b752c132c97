/* Tests engine/work.c: the loop of a copying thread, and how the thread serves readers in the
 * middle of other work. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "copy/fill.h"
#include "copy/upkeep.h"
#include "engine/grant.h"
#include "engine/schedule.h"
#include "publish/writer.h"
#include "set_clock.h"
#include "shared/doorbell.h"

/* Replacements for the functions that a thread's loop calls. Each adds a word to `trace`. */
static char trace[400];
static int starts_fail;
#define NOTE(...) snprintf(trace + strlen(trace), sizeof trace - strlen(trace), __VA_ARGS__)

static int nap(const struct timespec *t, struct timespec *left) {
    NOTE("nap:%ldus ", t->tv_nsec / 1000);
    return 0;
}
static int start_thread(pthread_t *thread, const pthread_attr_t *a, void *(*run)(void *),
                        void *arg) {
    size_t bytes = 0;
    NOTE("start:%zuK ", pthread_attr_getstacksize(a, &bytes) ? 0 : bytes / 1024);
    return starts_fail ? EAGAIN : 0;
}
static int advise(void *at, size_t n, int how) {
    if (how == MADV_DONTNEED)
        NOTE("shrink ");
    return madvise(at, n, how);
}
static int unmap(void *at, size_t n) {
    NOTE("unmap ");
    return munmap(at, n);
}
static int find(struct pool *p, struct worker *w, uint32_t roles, struct work *out);
static void order_demanded(struct pool *p, struct worker *w, int looks) {
    NOTE("order:%u%s ", w->unordered_count, looks ? "" : ",work");
    w->unordered_count = 0;
}
static int sleep_at(struct monarch_bell *b, uint32_t seen, uint32_t roles, uint64_t until_ns);
static void do_upkeep(struct monarch_engine *e, struct job *job, char *buffer) {
    memset(buffer, 1, 1);
    NOTE("work ");
    time_ns += 10000;
}
static struct fill *fill_begin(struct monarch_engine *e, struct job *job);
static void move(struct monarch_engine *e, struct fill *f, uint64_t unit, uint64_t count,
                 char *buffer, struct block_sum_stream *stream);
static void nothing_to_end(struct pool *p) {}
static void no_bell(uint32_t *bell) {}
static uint32_t roles_of(const struct worker *w) {
    return w->number % 2 ? MONARCH_DOES_ALL | MONARCH_READS_AHEAD : MONARCH_DOES_ALL;
}
#define nanosleep nap
#define pthread_create start_thread
#define pthread_setname_np(thread, name) ((void)(name))
#define madvise advise
#define munmap unmap
#define monarch_find_work find
#define monarch_roles_of roles_of
#define monarch_order_demanded order_demanded
#define monarch_bell_sleep sleep_at
#define monarch_do_upkeep do_upkeep
#define monarch_fill_begin fill_begin
#define monarch_fill_move move
#define monarch_end_rest nothing_to_end
#define monarch_doorbell_ring no_bell
#include "engine/work.c"
#undef monarch_now_ns

#include "checks.h"

static struct pool *p;
static struct monarch_engine *e;
static struct job job;

/* turn[0] says what the first search for work finds, turn[1] what the second search finds, and so
 * on. After the last search, the engine stops. */
static const struct turn {
    int found, leaves_nobody, unordered, is_unasked, awaits_reader, is_timeout;
} * turn;
static int turns;
static struct job *jobs[3];     /* the order that each search finds; NULL: it finds `job` */
static struct fill *fills[3];   /* the fill of each order */
static struct fill *found_fill; /* if set, each search finds unit 9 of this fill */
static int searches, fills_begun, calls_back;

static int find(struct pool *of, struct worker *w, uint32_t roles, struct work *out) {
    CHECK(of == p && w->pool == p);
    NOTE("find:%u ", roles);
    *out = (struct work){0};
    if (searches == turns) {
        p->shared.stopping = 1;
        return 0;
    }
    const struct turn *t = &turn[searches];
    w->unordered_count = (unsigned)t->unordered;
    w->is_unasked = t->is_unasked;
    w->awaits_reader = t->awaits_reader;
    out->leaves_nobody = t->leaves_nobody;
    out->job = found_fill ? NULL : searches < 3 && jobs[searches] ? jobs[searches] : &job;
    out->fill = found_fill;
    out->unit = 9;
    out->is_unit = 1;
    searches++;
    p->shared.clients->engine[w->origin].rings++; /* a ring during the search */
    return t->found;
}

static int sleep_at(struct monarch_bell *b, uint32_t seen, uint32_t roles, uint64_t until_ns) {
    CHECK(b == &p->shared.clients->engine[me->origin]);
    SAME(b->sleeping, 1);
    SAME(seen, b->rings - 1); /* a ring during the search is not missed */
    NOTE("sleep:%u:%llums ", roles,
         (unsigned long long)(until_ns ? (until_ns - time_ns) / 1000000 : 0));
    return !turn[searches - 1].is_timeout;
}

static struct fill *fill_begin(struct monarch_engine *of, struct job *of_job) {
    return fills[fills_begun++];
}

static void move(struct monarch_engine *of, struct fill *f, uint64_t unit, uint64_t count,
                 char *buffer, struct block_sum_stream *stream) {
    NOTE("move:%llu:%llu+%llu ", (unsigned long long)f->job->result.id, (unsigned long long)unit,
         (unsigned long long)count);
    if (calls_back)
        monarch_serve_readers(&p->shared, buffer);
}

static void make(const struct turn *of, int n) {
    e = make_engine(4 * MONARCH_CHUNK);
    p = calloc(1, sizeof *p + 16 * sizeof *p->worker);
    p->shared = *e;
    pthread_mutex_init(&p->lock, NULL);
    turn = of;
    turns = n;
    job = (struct job){.slot = -1, .handed = -1, .peer = {-1}};
    job.result = (struct monarch_result){.kind = MONARCH_DROP, .giver = -1};
    searches = fills_begun = calls_back = 0;
    memset(jobs, 0, sizeof jobs);
    found_fill = NULL;
    trace[0] = 0;
}

static void done(void) {
    free(p);
    free_engine(e);
}

static void check_trace(const char *right) {
    if (strcmp(trace, right) != 0)
        die("%s\nis not\n%s", trace, right);
}

/* Runs the loop in this thread as the worker with this number and origin. */
static void run_loop(enum monarch_origin origin, unsigned number) {
    struct worker *w = &p->worker[number];
    *w = (struct worker){.pool = p, .number = number, .origin = origin, .peer = -1};
    w->buffer = monarch_map_buffer();
    SAME((long)work(w), 0);
    SAME(p->shared.clients->engine[origin].sleeping, 0);
}

/* --- the loop --------------------------------------------------------------------------------- */

/* A thread looks for work of its own roles. If there is none, it sleeps at the bell of its origin.
 * When the engine stops, the thread returns its buffer. */
TEST(a_thread_works_or_sleeps_until_the_engine_stops) {
    const struct turn two[] = {{.found = 1}, {.found = 0}};
    for (int origin = 0; origin < MONARCH_ORIGINS; origin++)
        for (unsigned number = 0; number < 2; number++) {
            make(two, 2);
            p->most_threads = 2;
            run_loop((enum monarch_origin)origin, number);
            check_trace(number ? "find:5 work find:5 sleep:5:1000ms find:5 unmap "
                               : "find:1 work find:1 sleep:1:1000ms find:1 unmap ");
            done();
        }
    make(two, 2);
    p->shared.stopping = 1;
    run_loop(MONARCH_FROM_SOURCE, 0);
    check_trace("unmap ");
    done();
}

/* A thread that has had no work for a while returns the memory of its buffer. It does so only once,
 * and then sleeps without a limit. But it may have left an order queued, because a program is still
 * reading the order's file. Then it looks for work again sooner, and keeps its buffer. */
TEST(a_thread_without_work_returns_its_memory) {
    const struct turn idle[] = {{.found = 0, .is_timeout = 1},
                                {.found = 1},
                                {.found = 0, .awaits_reader = 1, .is_timeout = 1},
                                {.found = 0},
                                {.found = 0, .is_timeout = 1},
                                {.found = 0}};
    make(idle + 1, 5);
    run_loop(MONARCH_FROM_SOURCE, 0);
    check_trace("find:1 work find:1 sleep:1:50ms find:1 sleep:1:1000ms find:1 sleep:1:1000ms "
                "shrink find:1 sleep:1:0ms find:1 unmap ");
    done();
    make(idle + 5, 1);
    run_loop(MONARCH_FROM_SOURCE, 0);
    check_trace("find:1 sleep:1:0ms find:1 unmap ");
    done();
}

/* If pool.rests is set, a thread for the sources sleeps after work for which no reader waited. */
TEST(a_thread_rests_after_work_that_nobody_waits_for) {
    for (int rests = 0; rests < 2; rests++)
        for (int is_unasked = 0; is_unasked < 2; is_unasked++)
            for (int origin = 0; origin < MONARCH_ORIGINS; origin++) {
                const struct turn one = {.found = 1, .is_unasked = is_unasked};
                make(&one, 1);
                p->rests = rests;
                run_loop((enum monarch_origin)origin, 0);
                check_trace(rests && is_unasked && origin == MONARCH_FROM_SOURCE
                                ? "find:1 work nap:90us find:1 unmap "
                                : "find:1 work find:1 unmap ");
                done();
            }
}

/* If a thread that has found work was the last idle thread, it starts other threads before it
 * begins the work. The stacks of the new threads are small. */
TEST(a_thread_that_leaves_nobody_starts_others) {
    for (int leaves = 0; leaves < 2; leaves++) {
        const struct turn one = {.found = 1, .leaves_nobody = leaves};
        make(&one, 1);
        p->most_threads = 3;
        p->threads = 1;
        run_loop(MONARCH_FROM_SOURCE, 0);
        check_trace(leaves ? "find:1 start:256K start:256K work find:1 unmap "
                           : "find:1 work find:1 unmap ");
        for (int i = 1; i < 3 && leaves; i++)
            munmap(p->worker[i].buffer, MONARCH_CHUNK);
        done();
    }
}

/* If a thread cannot be started, its place stays free, and the thread does not count as idle. If it
 * counted as idle, the engine would start no other thread for later work. */
TEST(a_thread_that_was_not_started_is_not_idle) {
    for (int number = 0; number < 4; number++)
        for (starts_fail = 0; starts_fail < 2; starts_fail++) {
            make(NULL, 0);
            p->threads = number;
            p->resting[0] = 3;
            p->resting[1] = 4;
            pthread_mutex_lock(&p->lock);
            SAME(start_next(p), !starts_fail);
            SAME(pthread_mutex_trylock(&p->lock), EBUSY);
            pthread_mutex_unlock(&p->lock);
            SAME(p->threads, number + !starts_fail);
            SAME(p->resting[0], 3 + (!starts_fail && number % 2 == 0));
            SAME(p->resting[1], 4 + (!starts_fail && number % 2 == 1));
            if (!starts_fail)
                munmap(p->worker[number].buffer, MONARCH_CHUNK);
            done();
        }
}

/* If a search finds readers whose files have no order, fills of these files are ordered. The thread
 * then searches again, unless it has found other work. */
TEST(readers_without_an_order_get_one) {
    const struct turn finds[] = {{.found = 1, .unordered = 2}};
    const struct turn none[] = {{.found = 0, .unordered = 3},
                                {.found = 0, .unordered = 1},
                                {.found = 0},
                                {.found = 0, .unordered = 1},
                                {.found = 1}};
    struct work w;
    make(finds, 1);
    struct worker one = {.pool = p, .peer = -1};
    CHECK(find_next(&one, 3, &w) && w.job == &job);
    check_trace("find:3 order:2,work ");
    done();
    make(none, 5);
    one = (struct worker){.pool = p, .peer = -1};
    CHECK(!find_next(&one, 3, &w));
    check_trace("find:3 order:3 find:3 order:1 find:3 ");
    trace[0] = 0;
    CHECK(find_next(&one, 3, &w) && w.job == &job);
    check_trace("find:3 order:1 find:3 ");
    done();
}

/* --- readers that come in the middle of work -------------------------------------------------- */

/* Makes three fills of two runs each. Each fill's order has a handed-over descriptor, so the thread
 * that begins the fill moves all of its units. */
static struct job fill_jobs[3];
static void make_fills(void) {
    for (int i = 0; i < 3; i++) {
        fill_jobs[i] = (struct job){.slot = -1, .handed = 5, .peer = {-1}};
        fill_jobs[i].result.id = 10 + (uint64_t)i;
        jobs[i] = &fill_jobs[i];
        struct fill *f = fills[i] = calloc(1, sizeof *f + 64);
        f->claimed = (uint64_t *)(f + 1);
        f->job = jobs[i];
        f->units = 8;
        f->unit_bytes = MONARCH_UNIT;
        f->block_bytes = 4 * MONARCH_CHUNK;
        f->blocks = f->blocks_left = 1;
    }
}

static void free_fills(void) {
    for (int i = 0; i < 3; i++) {
        SAME(fills[i]->users, 0);
        free(fills[i]);
    }
    done();
}

/* A thread that moves a block serves waiting readers after each run of units. If it begins a fill
 * for such a reader, it also serves other readers in the middle of this fill. If it begins a second
 * fill for one of these other readers, it does not interrupt the second fill. This limits the
 * thread's stack and the delay of the first reader. */
TEST(fills_for_readers_nest_two_deep) {
    const struct turn three[] = {{.found = 1}, {.found = 1}, {.found = 0}};
    make(three, 3);
    make_fills();
    struct worker w = {.pool = p, .peer = -1};
    me = &w;
    fills_begun = 1;
    jobs[0] = &fill_jobs[1];
    jobs[1] = &fill_jobs[2];
    fills[0]->users = 1;
    struct work block = {.fill = fills[0]};
    do_work(p, &block, NULL);
    check_trace("move:10:0+4 find:2 move:11:0+4 find:2 move:12:0+4 move:12:4+4 find:2 "
                "move:11:4+4 find:2 move:10:4+4 ");
    free_fills();
}

/* While a thread fills a file from a handed-over descriptor, it serves no other readers. */
TEST(a_handed_fill_is_not_interrupted) {
    const struct turn one = {.found = 1};
    make(&one, 1);
    make_fills();
    struct worker w = {.pool = p, .peer = -1};
    monarch_do_handed(&w, jobs[0]);
    check_trace("move:10:0+4 move:10:4+4 ");
    CHECK(me == &w);
    free_fills();
}

/* While a thread waits for a peer, it serves readers: it moves the units that they wait for, or
 * begins fills. If one of these fills waits for a peer too, the thread serves nobody during this
 * second wait. */
TEST(readers_are_served_while_a_peer_is_waited_for) {
    const struct turn three[] = {{.found = 1}, {.found = 0}, {.found = 1}};
    make(three, 3);
    make_fills();
    struct worker w = {.pool = p, .peer = -1};
    me = &w;
    calls_back = 1;
    monarch_serve_readers(&p->shared, NULL);
    check_trace("find:2 move:10:0+4 move:10:4+4 find:2 ");
    found_fill = fills[1];
    fills[1]->users = 2;
    trace[0] = 0;
    monarch_serve_readers(&p->shared, NULL);
    check_trace("find:2 move:11:9+1 find:2 ");
    SAME(fills[1]->users, 1); /* the thread has left the fill */
    fills[1]->users = 0;
    free_fills();
}
