/* Tests engine/work.c: how results are handed over, how a thread begins, moves and ends fills, how
 * it rests, and how threads are started. work_threads.c tests the loop of a thread. */
#include <pthread.h>
#include <time.h>

#include "clients/demands.h"
#include "copy/fill.h"
#include "copy/source_file.h"
#include "copy/upkeep.h"
#include "engine/grant.h"
#include "engine/schedule.h"
#include "publish/writer.h"
#include "shared/clock.h"
#include "shared/doorbell.h"

/* Functions that replace the clock, sleep, start a thread and ring a bell, and what they record. */
static uint64_t time_ns = 1000000000000, slept_ns;
static int naps, rests_ended, bells_rung, starts, starts_fail, unlocked;
static struct {
    int origin;
    uint32_t who;
} rung;
/* what monarch_whom_it_needs returns: the roles that the waiting work needs */
static uint32_t needed;
static int found; /* what each search returns */
static uint64_t told_ns(void) { return time_ns; }
static int nap(const struct timespec *t, struct timespec *left) {
    naps++;
    slept_ns = (uint64_t)t->tv_sec * 1000000000 + (uint64_t)t->tv_nsec;
    return 0;
}
static void end_rest(struct pool *p) { rests_ended++; }
static void ring_doorbell(uint32_t *bell) { bells_rung++; }
static int start_thread(pthread_t *thread, const pthread_attr_t *a, void *(*run)(void *),
                        void *arg);
static void ring_one(struct pool *p, enum monarch_origin origin, uint32_t who) {
    rung.origin = origin;
    rung.who = who;
}
static void wake_bell(struct monarch_bell *b, int threads, uint32_t who) { rung.who = who; }
static uint32_t whom(struct pool *p, enum monarch_origin origin) { return needed; }
static int look_for_work(struct pool *p, struct worker *w, uint32_t roles, struct work *out);
static void unlock_and_ring(struct pool *p) {
    unlocked++;
    pthread_mutex_unlock(&p->lock);
}
/* The runs of units that were moved, each as UNIT+COUNT. An "s" follows if the run's bytes went
 * into a stream for the block's sum. */
static char moved[200];
static void move(struct monarch_engine *e, struct fill *f, uint64_t unit, uint64_t count,
                 char *buffer, struct block_sum_stream *stream);
#define monarch_now_ns told_ns
#define nanosleep nap
#define monarch_end_rest end_rest
#define monarch_doorbell_ring ring_doorbell
#define pthread_create start_thread
#define pthread_setname_np(thread, name) ((void)(name))
#define monarch_ring_one ring_one
#define monarch_bell_wake wake_bell
#define monarch_whom_it_needs whom
#define monarch_find_work look_for_work
#define monarch_unlock_and_ring unlock_and_ring
/* How often each step was taken. begun, ended: beginnings and ends of fills. kept_up: orders of
 * upkeep. published: results that were published. answered: answers to the readers of a whole file.
 * closed_handed: closes of handed-over descriptors. took_kept: searches for a waiting
 * descriptor. */
static int begun, ended, kept_up, published, answered, closed_handed, took_kept;
static struct fill *fill_begin(struct monarch_engine *e, struct job *job);
static void fill_end(struct monarch_engine *e, struct fill *f) { ended++; }
static void do_upkeep(struct monarch_engine *e, struct job *job, char *buffer) { kept_up++; }
static void close_handed(struct monarch_engine *e, struct job *job) { closed_handed++; }
static int can_lock = 1, publishes = 1;
static int lock_soon(struct monarch_writer *w) {
    return can_lock && pthread_mutex_lock(&w->lock) == 0;
}
static int publish_result(struct monarch_writer *w, const struct monarch_control *k,
                          const struct monarch_clients *m, const struct monarch_result *r) {
    published++;
    return publishes;
}
static uint64_t answered_entry;
static void answer(struct monarch_clients *m, uint64_t entry, uint64_t first, uint64_t count) {
    answered += first == 0 && count == MONARCH_FILL_UNITS;
    answered_entry = entry;
}
#define monarch_fill_begin fill_begin
#define monarch_fill_end fill_end
#define monarch_do_upkeep do_upkeep
#define monarch_close_handed close_handed
#define monarch_lock_soon lock_soon
#define monarch_publish_result publish_result
#define monarch_answer answer
#define monarch_fill_move move
#include "engine/work.c"
#undef monarch_now_ns
#undef pthread_create

#include "checks.h"

static struct pool *p;
static struct monarch_engine *e;
static int leaves_line; /* if set, look_for_work makes the thread leave its peer */

static int look_for_work(struct pool *of, struct worker *w, uint32_t roles, struct work *out) {
    CHECK(of == p);
    *out = (struct work){0};
    if (leaves_line)
        w->peer = -1;
    return found;
}

static int start_thread(pthread_t *thread, const pthread_attr_t *a, void *(*run)(void *),
                        void *arg) {
    CHECK(run == work);
    starts++;
    return starts_fail ? EAGAIN : 0;
}

static void move(struct monarch_engine *of, struct fill *f, uint64_t unit, uint64_t count,
                 char *buffer, struct block_sum_stream *stream) {
    size_t n = strlen(moved);
    snprintf(moved + n, sizeof moved - n, "%llu+%llu%s ", (unsigned long long)unit,
             (unsigned long long)count, stream ? "s" : "");
}

static void make(void) {
    e = make_engine(4 * MONARCH_CHUNK);
    p = calloc(1, sizeof *p + 16 * sizeof *p->worker);
    p->shared = *e;
    pthread_mutex_init(&p->lock, NULL);
    naps = rests_ended = bells_rung = starts = starts_fail = unlocked = found = leaves_line = 0;
    needed = rung.who = 0;
    slept_ns = 0;
    moved[0] = 0;
    begun = ended = kept_up = published = answered = closed_handed = took_kept = 0;
    can_lock = publishes = 1;
}

static void done(void) {
    free(p);
    free_engine(e);
}

/* --- results ---------------------------------------------------------------------------------- */

/* The daemon's bell is rung at once for a result that the daemon must handle itself. For results of
 * published copies, the bell is rung when RESULTS_AT_ONCE have accumulated. If the daemon waits for
 * results, the bell is rung when RESULTS_AWAITED have accumulated, or at once if fewer than
 * ORDERS_LEFT orders are queued. */
TEST(the_daemon_is_rung_for_results_in_time) {
    const struct {
        int rung, kind, published, awaits;
        uint64_t done, queued, paging;
        int rings;
    } cases[] = {
        {0, MONARCH_FILL, 0, 0, 1, 1000, 0, 1},
        /* the daemon was rung before and has not taken the results yet */
        {1, MONARCH_FILL, 0, 0, 1, 1000, 0, 0},
        {0, MONARCH_FILL, 1, 0, RESULTS_AT_ONCE - 1, 0, 0, 0},
        {0, MONARCH_FILL, 1, 0, RESULTS_AT_ONCE, 1000, 0, 1},
        {0, MONARCH_FILL, 1, 1, RESULTS_AWAITED - 1, ORDERS_LEFT, 0, 0},
        {0, MONARCH_FILL, 1, 1, RESULTS_AWAITED, ORDERS_LEFT, 0, 1},
        {0, MONARCH_FILL, 1, 1, 1, ORDERS_LEFT - 1, 0, 1},
        {0, MONARCH_FILL, 1, 0, 1, ORDERS_LEFT - 1, 0, 0},
        {0, MONARCH_DROP, 0, 0, 1, 1000, 0, 1},
        {0, MONARCH_PAGE_IN, 0, 1, 1000, 0, 1, 0}, /* another PAGE_IN is queued */
        {0, MONARCH_PAGE_IN, 0, 0, 1, 1000, 0, 1},
    };
    make();
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job job = {.result.kind = (uint32_t)cases[i].kind,
                          .result.is_published = (uint32_t)cases[i].published};
        p->rung = cases[i].rung;
        p->awaits_results = cases[i].awaits;
        p->done.length = cases[i].done;
        p->normal[MONARCH_FROM_SOURCE].length = cases[i].queued;
        p->to_page_in.length = cases[i].paging;
        SAME(rings_for(p, &job), cases[i].rings);
    }
    done();
}

/* The result of a finished job is queued. If the job has published a copy, its slot becomes free.
 * If so few slots were free that fills from peers had to wait, the threads are woken. */
TEST(a_published_copy_frees_its_slot) {
    for (unsigned before = 0; before <= MONARCH_SLOTS_OF_SOURCE + 1; before++)
        for (int is_published = 0; is_published < 2; is_published++) {
            make();
            struct job job = {.slot = 5, .handed = -1, .peer = {-1}};
            job.result.is_published = (uint32_t)is_published;
            job.result.giver = -1;
            p->free_slots = before;
            e->fills->word[5] = 7;
            push_result(p, &job);
            SAME(p->free_slots, before + (unsigned)is_published);
            SAME(p->done.length, 1);
            CHECK(p->done.first == &job);
            SAME(unlocked, is_published && before <= MONARCH_SLOTS_OF_SOURCE);
            /* if the copy was not published, Python is woken, because it must find out why */
            SAME(rests_ended, !is_published);
            SAME(bells_rung, 0);
            SAME(p->rung, !is_published);
            done();
        }
}

/* A finished copy is published at once if the writer is free. Then its readers are answered. If
 * this thread cannot publish the copy, Python publishes it later. The readers are answered
 * nevertheless, because they may use parts of the copy. A DROP or a failed order has no copy to
 * publish. */
TEST(a_finished_copy_is_published_at_once) {
    const struct {
        int has_writer, kind, status, can_lock, publishes, published, answered;
    } cases[] = {{1, MONARCH_FILL, MONARCH_DONE, 1, 1, 1, 1},
                 {0, MONARCH_FILL, MONARCH_DONE, 1, 1, 0, 1},
                 {1, MONARCH_FILL, MONARCH_DONE, 0, 1, 0, 1},
                 {1, MONARCH_FILL, MONARCH_DONE, 1, 0, 0, 1},
                 {1, MONARCH_CHECK, MONARCH_DONE, 1, 1, 1, 1},
                 {1, MONARCH_FILL, MONARCH_TIER_FULL, 1, 1, 0, 0},
                 {1, MONARCH_DROP, MONARCH_DONE, 1, 1, 0, 0}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        make();
        struct monarch_writer *w = monarch_writer_new();
        struct job job = {.slot = -1, .handed = -1, .peer = {-1}};
        job.result = (struct monarch_result){.id = 12, .giver = -1};
        job.result.kind = (uint32_t)cases[i].kind;
        job.result.status = (uint32_t)cases[i].status;
        p->shared.writer = cases[i].has_writer ? w : NULL;
        can_lock = cases[i].can_lock;
        publishes = cases[i].publishes;
        finish(p, &job);
        SAME(job.result.is_published, cases[i].published);
        SAME(answered, cases[i].answered);
        SAME(published, cases[i].published || !cases[i].publishes);
        if (answered)
            SAME(answered_entry, 12);
        SAME(p->done.length, 1);
        SAME(pthread_mutex_trylock(&w->lock), 0); /* the writer's lock is free again */
        pthread_mutex_unlock(&w->lock);
        monarch_writer_free(w);
        done();
    }
}

static struct fill *fill_of(uint64_t units, uint64_t unit_bytes, struct job *job);

/* The last thread that leaves a fill ends the fill if it is finished. An unfinished fill stays. */
TEST(the_last_thread_ends_a_finished_fill) {
    for (unsigned users = 1; users < 3; users++)
        for (int is_over = 0; is_over < 2; is_over++) {
            make();
            struct job job = {.slot = -1, .handed = -1, .peer = {-1}};
            job.result.giver = -1;
            struct fill *f = fill_of(8, MONARCH_UNIT, &job);
            f->users = users;
            f->blocks_left = !is_over;
            monarch_add_fill(p, f);
            leave(p, f);
            int ends = users == 1 && is_over;
            SAME(ended, ends);
            SAME(p->done.length, ends);
            SAME(f->users, users - 1);
            SAME(monarch_fill_of(p, 0) == NULL, ends);
            free(f);
            done();
        }
}

static struct fill *next_fill;
static struct fill *fill_begin(struct monarch_engine *of, struct job *job) {
    CHECK(job->result.status == MONARCH_ABANDONED && job->result.started_ns > 0);
    begun++;
    return next_fill;
}
static void takes_kept(struct pool *of, struct job *job) { took_kept++; }

/* A thread begins the fill that is ordered. If the file is small, or if the order came with a
 * descriptor, the thread moves all of the file's units at once. Otherwise, all threads share the
 * file's blocks. */
TEST(an_order_is_begun) {
    const struct listener listener = {.begins = takes_kept};
    const struct {
        uint64_t units;
        int handed;
        const char *moved;
        uint64_t next_block;
    } cases[] = {{1, -1, "0+1s ", 1}, {40, -1, "", 0}, {20, 7, "0+4s 4+4s 8+4s 12+4s 16+4s ", 2}};
    for (int i = 0; i < 3; i++) {
        make();
        p->listener = &listener;
        struct job job = {.slot = -1, .handed = cases[i].handed, .peer = {-1}, .is_kept = i == 2};
        struct fill *f = next_fill = fill_of(cases[i].units, MONARCH_UNIT, &job);
        f->blocks = (cases[i].units + 15) / 16;
        f->blocks_left = 1;
        needed = 1;
        begin(p, &job, NULL, DEEPEST);
        CHECK(strcmp(moved, cases[i].moved) == 0);
        SAME(f->next_block, cases[i].next_block);
        SAME(f->users, 0);
        SAME(rung.who, i == 1); /* in case 1, other threads can move blocks of the fill */
        SAME(took_kept, i == 2);
        CHECK(monarch_fill_of(p, 0) == f && ended == 0 && begun == 1);
        free(f);
        done();
    }
}

/* If a fill cannot begin, its readers are answered. A thread that takes an order of another kind
 * executes it at once. An unfinished PAGE_IN is put back into its queue. Once the engine stops,
 * nothing is begun. */
TEST(an_order_ends_or_goes_back) {
    for (int way = 0; way < 4; way++) {
        make();
        struct job job = {.slot = -1, .handed = -1, .peer = {-1}};
        job.result = (struct monarch_result){.id = 12, .giver = -1};
        job.result.kind = way == 1 ? MONARCH_DROP : way == 2 ? MONARCH_PAGE_IN : MONARCH_FILL;
        next_fill = NULL;
        p->shared.stopping = way == 3;
        begin(p, &job, NULL, 0);
        SAME(begun, way == 0);
        SAME(answered, way == 0);
        SAME(kept_up, way == 1 || way == 2);
        SAME(p->done.length, way != 2);
        SAME(p->to_page_in.length, way == 2);
        SAME(closed_handed, way == 3);
        done();
    }
}

/* --- searches --------------------------------------------------------------------------------- */

/* A thread that finds work wakes another thread for the work that is left. A thread that finds no
 * work wakes others only for work that it cannot do itself. If the thread worked for a peer before
 * its search and has left this peer, another thread may now ask the peer. In this case, the
 * searching thread wakes others even if no thread counts as sleeping. */
TEST(a_search_wakes_others_for_the_rest) {
    const struct {
        int found, all, sleeping, leaves;
        uint32_t needed, who;
    } cases[] = {{1, 1, 1, 0, 1, 1}, {1, 1, 0, 0, 1, 0}, {0, 1, 1, 0, 1, 0}, {0, 0, 1, 0, 1, 0},
                 {0, 0, 1, 0, 4, 4}, {0, 1, 0, 1, 1, 0}, {1, 1, 0, 1, 1, 1}, {0, 0, 0, 1, 1, 1},
                 {1, 1, 1, 0, 5, 5}, {0, 0, 1, 0, 5, 4}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        make();
        struct worker w = {.pool = p, .origin = MONARCH_FROM_SOURCE, .peer = 3};
        struct work out;
        found = cases[i].found;
        needed = cases[i].needed;
        leaves_line = cases[i].leaves;
        p->shared.clients->engine[MONARCH_FROM_SOURCE].sleeping = (uint32_t)cases[i].sleeping;
        SAME(look_once(&w, cases[i].all ? EVERYTHING : MONARCH_DOES_ALL, &out), found);
        SAME(rung.who, cases[i].who);
        done();
    }
}

/* --- runs of units ---------------------------------------------------------------------------- */

static struct fill *fill_of(uint64_t units, uint64_t unit_bytes, struct job *job) {
    struct fill *f = calloc(1, sizeof *f + 64);
    f->claimed = (uint64_t *)(f + 1);
    f->job = job;
    f->units = units;
    f->unit_bytes = unit_bytes;
    f->block_bytes = 4 * MONARCH_CHUNK;
    return f;
}

/* Units are moved in runs. A run from the source has as many units as a chunk, and a run from a
 * peer has as many units as a block. While readers wait, a run has only one unit. If a file is in
 * use, its first run also has only one unit, because a program will ask for this unit first. */
TEST(units_are_moved_in_runs) {
    const uint64_t unit = MONARCH_UNIT, chunk = MONARCH_CHUNK / unit;
    const struct {
        uint64_t asked_ago, first, run, bytes;
        int peer, in_use;
    } cases[] = {{0, 0, 4, MONARCH_UNIT, -1, 0},
                 {0, 0, 16, MONARCH_UNIT, 2, 0},
                 {0, 0, 1, MONARCH_UNIT, -1, 1},
                 {0, 0, 1, MONARCH_UNIT, 2, 1},
                 {0, 1, 4, MONARCH_UNIT, -1, 1},
                 {ASKED_NS, 0, 1, MONARCH_UNIT, -1, 0},
                 {ASKED_NS + 1, 0, 4, MONARCH_UNIT, -1, 0},
                 {0, 0, 1, 2 * MONARCH_CHUNK, -1, 0}};
    SAME(chunk, 4);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        make();
        struct job job = {.peer = {cases[i].peer}};
        job.result.in_use = (uint32_t)cases[i].in_use;
        struct fill *f = fill_of(64, cases[i].bytes, &job);
        f->asked_ns = cases[i].asked_ago ? time_ns - cases[i].asked_ago : 0;
        uint64_t at = cases[i].first;
        int whole = 1;
        SAME(claim_run(p, f, &at, 16, &whole), cases[i].run);
        SAME(at, cases[i].first);
        SAME(whole, 1);
        for (uint64_t u = 0; u < 64; u++)
            SAME(monarch_is_claimed(f, u), u >= at && u < at + cases[i].run);
        free(f);
        done();
    }
}

/* A thread skips the units of a block that other threads have claimed. It then does not see all
 * bytes of the block, so it puts none of them into a stream for the block's sum. */
TEST(units_of_others_are_skipped) {
    make();
    struct job job = {.peer = {-1}};
    struct fill *f = fill_of(20, MONARCH_UNIT, &job);
    monarch_claim(f, 16);
    monarch_claim(f, 18);
    move_block(p, f, 1, NULL, DEEPEST);
    CHECK(strcmp(moved, "17+1 19+1 ") == 0);
    moved[0] = 0;
    move_block(p, f, 0, NULL, DEEPEST);
    CHECK(strcmp(moved, "0+4s 4+4s 8+4s 12+4s ") == 0);
    uint64_t at = 0;
    int whole = 1;
    SAME(claim_run(p, f, &at, 16, &whole), 0);
    SAME(at, 16);
    free(f);
    done();
}

/* If the search for work has found a unit, the thread moves just that unit. If the search has found
 * a block, the thread moves the whole block. */
TEST(a_thread_moves_what_it_has_found) {
    for (int is_unit = 0; is_unit < 2; is_unit++) {
        make();
        struct job job = {.slot = -1, .handed = -1, .peer = {-1}};
        struct fill *f = fill_of(32, MONARCH_UNIT, &job);
        f->users = 2;
        f->blocks_left = 1;
        /* no reader waits meanwhile */
        struct worker w = {.pool = p, .origin = MONARCH_FROM_SOURCE, .peer = -1};
        me = &w;
        struct work it = {.fill = f, .unit = 17, .block = 1, .is_unit = is_unit};
        do_work(p, &it, NULL);
        CHECK(strcmp(moved, is_unit ? "17+1 " : "16+4s 20+4s 24+4s 28+4s ") == 0);
        SAME(f->users, 1);
        free(f);
        done();
    }
}

/* --- rests and threads ------------------------------------------------------------------------ */

/* A rest lasts REST times as long as the work before it, but at most MOST_REST_NS. */
TEST(a_rest_lasts_as_long_as_the_work_asks) {
    rest(time_ns - 1000);
    SAME(slept_ns, 9000);
    rest(time_ns - MOST_REST_NS / REST);
    SAME(slept_ns, MOST_REST_NS / REST * REST);
    rest(time_ns - MOST_REST_NS);
    SAME(slept_ns, MOST_REST_NS);
}

/* A sleeping thread wakes without a ring in two cases. It wakes when a reader's claim may have
 * ended, and when the thread must return its buffer's memory. */
TEST(a_thread_wakes_by_itself_when_it_has_to) {
    struct worker w = {0};
    SAME(next_look(&w, 0), 0);
    SAME(next_look(&w, 1), time_ns + KEEPS_NS);
    w.awaits_reader = 1;
    SAME(next_look(&w, 0), time_ns + READER_NS);
    SAME(next_look(&w, 1), time_ns + READER_NS);
}

static void unmap_all(int n) {
    for (int i = 0; i < n; i++)
        if (p->worker[i].buffer)
            monarch_unmap_buffer(p->worker[i].buffer);
}

/* There are two kinds of threads: those that read ahead and those that do not. More threads are
 * started until one thread of each kind has no work, or until all threads run. */
TEST(threads_are_started_until_one_of_each_kind_is_idle) {
    for (int most = 0; most < 6; most++) {
        make();
        p->most_threads = most;
        start_more(p);
        SAME(p->threads, most < 2 ? most : 2);
        p->resting[1] = 0; /* the second thread has work now */
        start_more(p);
        SAME(p->threads, most < 4 ? most : 4);
        start_more(p);
        SAME(p->threads, most < 4 ? most : 4);
        SAME(p->is_starting, 0);
        for (int i = 0; i < p->threads; i++)
            CHECK(p->worker[i].number == (uint32_t)i && p->worker[i].peer == -1 &&
                  p->worker[i].origin == MONARCH_FROM_SOURCE && p->worker[i].pool == p);
        p->is_starting = 1; /* another thread is starting threads */
        p->resting[0] = 0;
        int before = starts;
        start_more(p);
        SAME(starts, before);
        unmap_all(p->threads);
        done();
    }
}

/* If a thread cannot be started, the next attempt is made more than RETRY_NS later. */
TEST(a_failed_start_is_tried_again_after_a_while) {
    make();
    p->most_threads = 3;
    starts_fail = 1;
    start_more(p);
    CHECK(starts == 1 && p->threads == 0 && !p->resting[0] && !p->resting[1]);
    SAME(p->start_after_ns, time_ns + RETRY_NS);
    starts_fail = 0;
    time_ns += RETRY_NS;
    start_more(p);
    SAME(starts, 1);
    time_ns++;
    start_more(p);
    CHECK(p->threads == 2 && p->start_after_ns == 0);
    unmap_all(2);
    done();
}

/* In the array of workers, threads for peers come after those for the sources. They are started
 * only if a thread for the sources could be started. */
TEST(threads_for_peers_come_behind) {
    for (int fails = 0; fails < 2; fails++) {
        make();
        p->most_threads = 3;
        starts_fail = fails;
        SAME(monarch_start_threads(p, 4), fails ? 0 : 2);
        SAME(p->peer_threads, fails ? 0 : 4);
        for (int i = 0; i < p->peer_threads; i++)
            CHECK(p->worker[3 + i].origin == MONARCH_FROM_PEER &&
                  p->worker[3 + i].number == (uint32_t)i);
        unmap_all(16);
        done();
    }
}

/* An unfinished PAGE_IN becomes the first of its queue again, and a thread is woken for it. */
TEST(an_unfinished_page_in_comes_first_again) {
    make();
    struct job first = {.slot = -1}, second = {.slot = -1};
    monarch_push(&p->to_page_in, &second);
    needed = 4;
    put_back(p, &first);
    CHECK(p->to_page_in.first == &first && p->to_page_in.length == 2);
    CHECK(rung.who == 4 && rung.origin == MONARCH_FROM_SOURCE);
    done();
}
