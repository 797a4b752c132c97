/* What a copying thread does with the work that it finds. */
#define _GNU_SOURCE
#include "work.h"

#include <stdlib.h>
#include <time.h>

#include "buffer.h"
#include "doorbell.h"
#include "waking.h"

/* Results of copies that nobody waits for, in the daemon's hands at a time: a quarter of the slots,
 * which they hold until then. */
#define RESULTS_AT_ONCE (MONARCH_FILL_SLOTS / 4)
/* A reader has waited for a unit of the file within this time: it is moved in units [ns]. */
#define ASKED_NS 500000000ULL

/* A daemon that has been rung for one result takes all. A copy that nobody waits for can wait for
 * others, so that a turn of the daemon's loop is not spent on every small file: until they hold a
 * part of the slots, or there is little left to do. */
static void finish(struct pool *p, struct job *job) {
    pthread_mutex_lock(&p->lock);
    monarch_push(&p->done, job);
    uint64_t left = p->normal[MONARCH_FROM_SOURCE].length;
    int can_wait = job->result.kind == MONARCH_FILL && !job->result.in_use &&
                   job->result.status == MONARCH_DONE && p->done.length < RESULTS_AT_ONCE &&
                   left >= RESULTS_AT_ONCE;
    can_wait |= job->result.kind == MONARCH_PAGE_IN && p->to_page_in.length;
    int rings = !can_wait && !p->rung;
    p->rung |= rings;
    pthread_mutex_unlock(&p->lock);
    if (rings)
        monarch_doorbell_ring(&p->shared.clients->doorbell);
}

/* Whoever leaves a fill last ends it. */
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

/* An order to read ahead of which a part is done, before all others. */
static void put_back(struct pool *p, struct job *job) {
    pthread_mutex_lock(&p->lock);
    monarch_push_first(&p->to_page_in, job);
    uint32_t who = monarch_whom_it_needs(p, MONARCH_FROM_SOURCE);
    pthread_mutex_unlock(&p->lock);
    monarch_ring_one(p, MONARCH_FROM_SOURCE, who);
}

/* The thread itself. */
static __thread struct worker *me;

static void begin(struct pool *p, struct job *job, char *buffer, int depth);

/* Between two parts of something else. A file that is begun here begins no other in its middle. */
static void serve_demands(struct pool *p, char *buffer, int depth) {
    struct work w;
    while (depth < 2 && monarch_look(me, MONARCH_DOES_DEMANDS, &w)) {
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

/* The next units of a block that nobody has taken up, as one run from *unit on; whole is set to 0
 * when others have come before. */
static uint64_t claim_run(struct pool *p, struct fill *f, uint64_t *unit, uint64_t end,
                          int *whole) {
    uint64_t n = 0, most = 1;
    /* A peer sends a whole block with the sum that it has recorded. */
    uint64_t run = f->job->peer[0] < 0 ? MONARCH_CHUNK : f->block_bytes;
    pthread_mutex_lock(&p->lock);
    if (!f->asked_ns || monarch_now_ns() - f->asked_ns > ASKED_NS)
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
    struct xxh3_stream stream;
    int whole = 1;
    monarch_xxh3_begin(&stream);
    for (uint64_t n; (n = claim_run(p, f, &unit, end, &whole)) > 0; unit += n) {
        monarch_fill_move(&p->shared, f, unit, n, buffer, whole ? &stream : NULL);
        if (unit + n < end)
            serve_demands(p, buffer, depth);
    }
}

static void begin(struct pool *p, struct job *job, char *buffer, int depth) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    job->result.started_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
    job->result.status = MONARCH_ABANDONED;
    if (__atomic_load_n(&p->shared.stopping, __ATOMIC_RELAXED)) {
        finish(p, job);
    } else if (job->result.kind != MONARCH_FILL) {
        monarch_do_job(&p->shared, job, buffer);
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
        /* One unit is moved at once. More than that is for those who have nothing better to do:
         * this thread may be here only because a reader waits. */
        int is_small = f->units == 1;
        enum monarch_way way = monarch_way_of(job);
        pthread_mutex_lock(&p->lock);
        f->users = 1;
        f->next_block = is_small;
        monarch_add_fill(p, f);
        uint32_t who = is_small ? 0 : monarch_whom_it_needs(p, way);
        pthread_mutex_unlock(&p->lock);
        monarch_ring_one(p, way, who);
        if (is_small)
            move_block(p, f, 0, buffer, depth);
        leave(p, f);
    }
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

/* The bell is the clients' as well: a wrong ring only wakes. */
static void *work(void *arg) {
    me = arg;
    struct pool *p = me->pool;
    const struct monarch_bell *bell = &p->shared.clients->engine[me->way];
    char *buffer = monarch_new_buffer(MONARCH_CHUNK);
    while (buffer && !__atomic_load_n(&p->shared.stopping, __ATOMIC_ACQUIRE)) {
        struct work w;
        uint32_t seen = __atomic_load_n(&bell->rings, __ATOMIC_SEQ_CST);
        uint32_t roles = monarch_roles_of(p, me); /* who changes them rings */
        if (monarch_look(me, roles, &w))
            do_work(p, &w, buffer);
        else
            monarch_sleep(me, seen, roles);
    }
    free(buffer);
    return NULL;
}

int monarch_start_threads(struct pool *p, struct worker *workers, enum monarch_way way,
                          int threads) {
    for (int i = 0; i < threads; i++) {
        workers[i] = (struct worker){.pool = p, .number = (uint32_t)i, .way = way, .peer = -1};
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            return i;
    }
    return threads;
}
