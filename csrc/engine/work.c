/* The loop of a copying thread, and the functions that do the work found in the loop. */
#include "engine/work.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "clients/demands.h"
#include "copy/fill.h"
#include "copy/source_file.h"
#include "copy/upkeep.h"
#include "engine/entries.h"
#include "engine/grant.h"
#include "engine/orders.h"
#include "publish/writer.h"
#include "shared/clock.h"
#include "shared/doorbell.h"

/* Published copies are reported to the daemon in groups (rings_for). If the daemon waits for
 * results (monarch_engine_await), it is woken when there are this many. */
#define RESULTS_AWAITED 64
/* If the daemon does not wait for results, it is woken when there are this many. */
#define RESULTS_AT_ONCE 512
/* If the daemon waits for results, it is also woken when fewer than this many orders are queued. It
 * can then submit more orders before the threads run out of work. */
#define ORDERS_LEFT 64
/* For this long [ns] after a reader has waited for a unit of a file, threads copy the file unit by
 * unit, instead of in longer runs. */
#define ASKED_NS 500000000ULL
/* Size of a thread's stack [bytes]. It is small, because file content goes into a separate
 * buffer. */
#define STACK_BYTES (256 * 1024)
/* After this long [ns] without work, a thread returns the memory of its buffer to the kernel. */
#define KEEPS_NS 1000000000ULL
/* Interval [ns] at which a thread looks again at an order whose file a program is still reading. */
#define READER_NS 50000000ULL
/* If pool.rests is set, a thread for the sources sleeps after each piece of unasked work. It sleeps
 * REST times as long as the work took, but at most MOST_REST_NS. */
#define REST 9
#define MOST_REST_NS 2000000ULL
/* Pause [ns] before the next attempt if a thread could not be started (RLIMIT_NPROC, memory). */
#define RETRY_NS 1000000000ULL

#define EVERYTHING (MONARCH_DOES_ALL | MONARCH_READS_AHEAD)

/* Returns whether to wake the daemon for this result. If the daemon was woken and has not taken its
 * results yet, it will take this result too. The result of a published copy is not urgent. The
 * results of published copies accumulate, so that one iteration of the daemon's loop handles many
 * files. */
static int rings_for(const struct pool *p, const struct job *job) {
    if (p->rung)
        return 0;
    if (job->result.kind == MONARCH_PAGE_IN)
        return !p->to_page_in.length;
    if (!job->result.is_published || p->done.length >= RESULTS_AT_ONCE)
        return 1;
    return p->awaits_results && (p->done.length >= RESULTS_AWAITED ||
                                 p->normal[MONARCH_FROM_SOURCE].length < ORDERS_LEFT);
}

static void push_result(struct pool *p, struct job *job) {
    pthread_mutex_lock(&p->lock);
    unsigned free_before = p->free_slots;
    if (job->result.is_published)
        monarch_free_slot(p, job);
    if (job->result.kind == MONARCH_FILL)
        monarch_note_giver(p, &job->result);
    monarch_push(&p->done, job);
    int rings = rings_for(p, job), ends_rest = 0;
    p->rung |= rings;
    ends_rest = !job->result.is_published && monarch_leaves_again(p, job);
    if (p->free_slots > free_before && free_before <= MONARCH_SLOTS_OF_SOURCE)
        /* Fills from peers could not begin, because they must leave MONARCH_SLOTS_OF_SOURCE slots
         * free. Now more slots are free, so wake the threads. */
        monarch_unlock_and_ring(p);
    else
        pthread_mutex_unlock(&p->lock);
    if (ends_rest)
        monarch_end_rest(p);
    else if (rings)
        monarch_doorbell_ring(&p->shared.clients->doorbell);
}

/* Publishes the copy if it is complete, reports the order's result, and answers the readers that
 * wait for the file. The result is queued before the writer's lock is released. So it precedes the
 * result of a later removal of the copy: Python orders the removal only after it has changed the
 * entry's word under this lock. */
static void finish(struct pool *p, struct job *job) {
    const struct monarch_engine *e = &p->shared;
    uint64_t id = job->result.id;
    int is_ready = monarch_is_awaited(job) && job->result.status == MONARCH_DONE;
    /* While the catalog grows, the writer's lock is held for a long time. So wait only a short
     * time. If this thread does not get the lock, Python publishes the copy when it takes the
     * result. */
    int has_writer = is_ready && e->writer && monarch_lock_soon(e->writer);
    if (has_writer)
        job->result.is_published =
            (uint32_t)monarch_publish_result(e->writer, e->control, e->clients, &job->result);
    push_result(p, job); /* from here on, the job may be freed */
    if (has_writer)
        pthread_mutex_unlock(&e->writer->lock);
    if (is_ready)
        monarch_answer(e->clients, id, 0, MONARCH_FILL_UNITS);
}

/* Call this when this thread no longer works on the fill. The last thread that leaves a complete or
 * failed fill also ends it. */
static void leave(struct pool *p, struct fill *f) {
    pthread_mutex_lock(&p->lock);
    int last = --f->users == 0 && monarch_fill_is_over(f);
    if (last)
        monarch_remove_fill(p, f);
    pthread_mutex_unlock(&p->lock);
    if (last) {
        struct job *job = f->job;
        monarch_fill_end(&p->shared, f);
        finish(p, job);
    }
}

/* Puts an unfinished PAGE_IN back into its queue, as the first one. */
static void put_back(struct pool *p, struct job *job) {
    pthread_mutex_lock(&p->lock);
    monarch_push_first(&p->to_page_in, job);
    uint32_t who = monarch_whom_it_needs(p, MONARCH_FROM_SOURCE);
    pthread_mutex_unlock(&p->lock);
    monarch_ring_one(p, MONARCH_FROM_SOURCE, who);
}

static int look_once(struct worker *me, uint32_t roles, struct work *w) {
    struct pool *p = me->pool;
    enum monarch_origin origin = me->origin;
    struct monarch_bell *bell = &p->shared.clients->engine[origin];
    uint32_t who = 0, all = origin == MONARCH_FROM_PEER ? MONARCH_DOES_ALL : EVERYTHING;
    int was_at = me->peer;
    pthread_mutex_lock(&p->lock);
    int found = monarch_find_work(p, me, roles, w), has_left = was_at >= 0 && me->peer != was_at;
    if ((found || roles != all) && (has_left || __atomic_load_n(&bell->sleeping, __ATOMIC_SEQ_CST)))
        who = monarch_whom_it_needs(p, origin);
    /* This thread has the role DOES_ALL, but found no work. Work for this role may still be queued:
     * an order that cannot begin, because a program is reading its file. No other thread could
     * begin this order either, so wake none for it. */
    if (!found && !has_left && roles & MONARCH_DOES_ALL)
        who &= ~(uint32_t)MONARCH_DOES_ALL;
    pthread_mutex_unlock(&p->lock);
    if (who && has_left)
        monarch_ring_one(p, origin, who);
    else if (who)
        monarch_bell_wake(bell, 1, who);
    return found;
}

/* Finds the caller's next work. If the search meets demands whose files have no order, also orders
 * fills for them. Returns 0 if there is no work. */
static int find_next(struct worker *me, uint32_t roles, struct work *w) {
    int found;
    do {
        found = look_once(me, roles, w);
        if (!me->unordered_count)
            return found;
        monarch_order_demanded(me->pool, me, !found);
    } while (!found);
    return found;
}

/* The worker that runs in this thread. */
static __thread struct worker *me;

static void begin(struct pool *p, struct job *job, char *buffer, int depth);

/* Serves waiting readers in the middle of other work. For a reader, this thread may begin another
 * fill, and may interrupt that fill for other readers. Fills interrupt each other at most DEEPEST
 * levels deep. */
#define DEEPEST 2
static void serve_demands(struct pool *p, char *buffer, int depth) {
    struct work w;
    while (depth < DEEPEST && find_next(me, MONARCH_DOES_DEMANDS, &w)) {
        if (w.job) {
            begin(p, w.job, buffer, depth + 1);
        } else {
            monarch_fill_move(&p->shared, w.fill, w.unit, 1, buffer, NULL);
            leave(p, w.fill);
        }
    }
}

void monarch_serve_readers(struct monarch_engine *e, char *buffer) {
    static __thread int is_inside;
    if (is_inside)
        return;
    is_inside = 1;
    serve_demands((struct pool *)e, buffer, 1);
    is_inside = 0;
}

/* Claims the next run of unclaimed units of a block. Sets *unit to the run's first unit, and
 * returns the run's length. Sets *whole to 0 if it skips units that other threads have claimed. */
static uint64_t claim_run(struct pool *p, struct fill *f, uint64_t *unit, uint64_t end,
                          int *whole) {
    uint64_t n = 0, most = 1;
    /* Ask a peer for a whole block, because the peer then also sends the checksum that it has
     * recorded for the block. */
    uint64_t run = f->job->peer[0] < 0 ? MONARCH_CHUNK : f->block_bytes;
    pthread_mutex_lock(&p->lock);
    /* A program that has just opened the file will read its first unit next, so copy this unit
     * alone. */
    int is_expected = f->job->result.in_use && *unit == 0;
    if (!is_expected && (!f->asked_ns || monarch_now_ns() - f->asked_ns > ASKED_NS))
        most = run / f->unit_bytes ? run / f->unit_bytes : 1;
    for (; *unit < end && monarch_is_claimed(f, *unit); ++*unit)
        *whole = 0;
    for (; n < most && *unit + n < end && !monarch_is_claimed(f, *unit + n); n++)
        monarch_claim(f, *unit + n);
    pthread_mutex_unlock(&p->lock);
    return n;
}

static void move_block(struct pool *p, struct fill *f, uint64_t block, char *buffer, int depth) {
    uint64_t per_block = f->block_bytes / f->unit_bytes, unit = block * per_block;
    uint64_t end = unit + per_block < f->units ? unit + per_block : f->units;
    struct block_sum_stream stream;
    int whole = 1;
    monarch_block_sum_begin(&stream, f->content_key);
    for (uint64_t n; (n = claim_run(p, f, &unit, end, &whole)) > 0; unit += n) {
        monarch_fill_move(&p->shared, f, unit, n, buffer, whole ? &stream : NULL);
        if (unit + n < end)
            serve_demands(p, buffer, depth);
    }
    monarch_block_sum_end(&stream, NULL);
}

static void begin(struct pool *p, struct job *job, char *buffer, int depth) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    job->result.started_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
    job->result.status = MONARCH_ABANDONED;
    if (job->is_kept)
        p->listener->begins(p, job);
    if (__atomic_load_n(&p->shared.stopping, __ATOMIC_RELAXED)) {
        monarch_close_handed(&p->shared, job);
        finish(p, job);
    } else if (job->result.kind != MONARCH_FILL) {
        monarch_do_upkeep(&p->shared, job, buffer);
        if (job->result.kind != MONARCH_PAGE_IN || job->result.status != MONARCH_ABANDONED)
            finish(p, job);
        else
            put_back(p, job);
    } else {
        struct fill *f = monarch_fill_begin(&p->shared, job);
        if (!f) {
            monarch_answer(p->shared.clients, job->result.id, 0, MONARCH_FILL_UNITS);
            finish(p, job);
            return;
        }
        /* If the file has one unit, or the order has a reader's descriptor, copy the whole file
         * now. Leave the blocks of any other file to threads without more urgent work: this thread
         * may have begun the fill in the middle of other work. */
        int is_small = f->units == 1, is_handed = job->handed >= 0;
        uint64_t blocks = is_handed ? f->blocks : (uint64_t)is_small;
        enum monarch_origin origin = monarch_origin_of(job);
        pthread_mutex_lock(&p->lock);
        f->users = 1;
        f->next_block = blocks;
        monarch_add_fill(p, f);
        uint32_t who = is_small || is_handed ? 0 : monarch_whom_it_needs(p, origin);
        pthread_mutex_unlock(&p->lock);
        monarch_ring_one(p, origin, who);
        for (uint64_t b = 0; b < blocks; b++)
            move_block(p, f, b, buffer, depth);
        leave(p, f);
    }
}

void monarch_do_handed(struct worker *w, struct job *job) {
    me = w;
    /* At the depth DEEPEST, the thread serves no other readers during this fill. The program may
     * soon want its descriptor closed, so the fill must not be delayed. */
    begin(w->pool, job, w->buffer, DEEPEST);
}

static void do_work(struct pool *p, const struct work *w, char *buffer) {
    if (w->job) {
        begin(p, w->job, buffer, 0);
        return;
    }
    if (w->is_unit)
        monarch_fill_move(&p->shared, w->fill, w->unit, 1, buffer, NULL);
    else
        move_block(p, w->fill, w->block, buffer, 0);
    leave(p, w->fill);
}

static void start_more(struct pool *p);

/* Makes this thread sleep after work that began at `since_ns`. A new demand of a reader does not
 * interrupt the sleep; another thread serves it. */
static void rest(uint64_t since_ns) {
    uint64_t ns = REST * (monarch_now_ns() - since_ns);
    struct timespec t = {0, (long)(ns < MOST_REST_NS ? ns : MOST_REST_NS)};
    nanosleep(&t, NULL);
}

/* Returns the time until which a thread may sleep if its bell does not ring; 0: without limit. If a
 * program was reading an order's file (awaits_reader), the thread then looks at this order again.
 * Otherwise, it then returns its buffer's memory to the kernel. */
static uint64_t next_look(const struct worker *w, int has_used) {
    uint64_t ns = w->awaits_reader ? READER_NS : has_used ? KEEPS_NS : 0;
    return ns ? monarch_now_ns() + ns : 0;
}

/* Sleeps until the bell of the thread's origin (the sources or the peers) rings, or until
 * `until_ns` [CLOCK_MONOTONIC; 0: no limit]. If the bell's word differs from `seen`, does not
 * sleep. Returns 0 if `until_ns` has passed, else 1. */
static int wait_for_ring(const struct worker *w, uint32_t seen, uint32_t roles, uint64_t until_ns) {
    struct pool *p = w->pool;
    struct monarch_bell *bell = &p->shared.clients->engine[w->origin];
    int was_rung = 1;
    __atomic_fetch_add(&bell->sleeping, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&p->shared.stopping, __ATOMIC_SEQ_CST))
        was_rung = monarch_bell_sleep(bell, seen, roles, until_ns);
    __atomic_fetch_sub(&bell->sleeping, 1, __ATOMIC_SEQ_CST);
    return was_rung;
}

/* The loop of a copying thread. Clients can also ring its bell. If a client rings without need, the
 * thread finds no work and sleeps again. */
static void *work(void *arg) {
    me = arg;
    struct pool *p = me->pool;
    const struct monarch_bell *bell = &p->shared.clients->engine[me->origin];
    uint32_t roles = monarch_roles_of(me);
    int has_used = 0;
    while (!__atomic_load_n(&p->shared.stopping, __ATOMIC_ACQUIRE)) {
        struct work w;
        uint32_t seen = __atomic_load_n(&bell->rings, __ATOMIC_SEQ_CST);
        if (find_next(me, roles, &w)) {
            if (w.leaves_nobody)
                start_more(p);
            uint64_t begun_ns = __atomic_load_n(&p->rests, __ATOMIC_RELAXED) ? monarch_now_ns() : 0;
            do_work(p, &w, me->buffer);
            has_used = 1;
            if (begun_ns && me->is_unasked && me->origin == MONARCH_FROM_SOURCE)
                rest(begun_ns);
        } else if (!wait_for_ring(me, seen, roles, next_look(me, has_used)) && !me->awaits_reader) {
            madvise(me->buffer, MONARCH_CHUNK, MADV_DONTNEED);
            has_used = 0;
        }
    }
    monarch_unmap_buffer(me->buffer);
    return NULL;
}

/* Maps a buffer of MONARCH_CHUNK bytes. Only pages that a thread has touched take memory. With huge
 * pages, the first touch would take memory for the whole buffer. */
char *monarch_map_buffer(void) {
    char *buffer =
        mmap(NULL, MONARCH_CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED)
        return NULL;
    madvise(buffer, MONARCH_CHUNK, MADV_NOHUGEPAGE);
    return buffer;
}

void monarch_unmap_buffer(char *buffer) { munmap(buffer, MONARCH_CHUNK); }

static int start(struct pool *p, struct worker *w, enum monarch_origin origin, int number) {
    pthread_attr_t attributes;
    char *buffer = monarch_map_buffer();
    if (!buffer)
        return 0;
    *w = (struct worker){
        .pool = p, .number = (uint32_t)number, .origin = origin, .peer = -1, .buffer = buffer};
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    int is_started = pthread_create(&w->thread, &attributes, work, w) == 0;
    pthread_attr_destroy(&attributes);
    if (is_started) /* the name that `top -H` shows */
        pthread_setname_np(w->thread,
                           origin == MONARCH_FROM_PEER ? "monarch-fetch" : "monarch-fill");
    else
        monarch_unmap_buffer(buffer);
    return is_started;
}

/* Starts the next thread for the sources, and then counts it in p->threads. The caller holds the
 * pool's lock, which is released while the thread starts. A monarch_engine_stop meanwhile joins the
 * new thread too: it first joins the calling thread, and then reads p->threads again. */
static int start_next(struct pool *p) {
    int number = p->threads;
    p->resting[number % 2]++;
    pthread_mutex_unlock(&p->lock);
    int is_started = start(p, &p->worker[number], MONARCH_FROM_SOURCE, number);
    pthread_mutex_lock(&p->lock);
    p->resting[number % 2] -= !is_started;
    __atomic_store_n(&p->threads, number + is_started, __ATOMIC_SEQ_CST);
    return is_started;
}

/* Starts threads for the sources until one with the role READS_AHEAD and one without it are idle,
 * or until `most_threads` run. Does nothing while another thread runs this function. */
static void start_more(struct pool *p) {
    pthread_mutex_lock(&p->lock);
    if (!p->is_starting && (!p->start_after_ns || monarch_now_ns() > p->start_after_ns)) {
        int is_ok = p->is_starting = 1;
        while (is_ok && p->threads < p->most_threads && !(p->resting[0] && p->resting[1]))
            is_ok = start_next(p);
        p->is_starting = 0;
        p->start_after_ns = is_ok ? 0 : monarch_now_ns() + RETRY_NS;
    }
    pthread_mutex_unlock(&p->lock);
}

int monarch_start_threads(struct pool *p, int peer_threads) {
    start_more(p);
    struct worker *workers = p->worker + p->most_threads;
    int n = 0;
    while (p->threads && n < peer_threads && start(p, &workers[n], MONARCH_FROM_PEER, n))
        n++;
    p->peer_threads = n;
    return p->threads;
}
