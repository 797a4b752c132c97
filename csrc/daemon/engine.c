/* The threads that copy, and what Python asks of them. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "doorbell.h"
#include "schedule.h"

/* Results of copies that nobody waits for, in the daemon's hands at a time: a quarter of the slots,
 * which they hold until then. */
#define RESULTS_AT_ONCE (MONARCH_FILL_SLOTS / 4)
/* A reader has waited for a unit of the file within this time: it is moved in units [ns]. */
#define ASKED_NS 500000000ULL

/* --- doing it -----------------------------------------------------------------------------------
 */

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
    can_wait |= job->result.kind == MONARCH_PAGE_IN && left;
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

/* --- who does it --------------------------------------------------------------------------------
 *
 * A thread is woken for work, not for every ring, and no work waits for a thread that sleeps:
 *
 * - Work is made under the lock; then the bell of its way is rung, which changes the word and wakes
 *   one thread that could do it. A thread reads the word before it looks for work and sleeps only
 *   while it is the same: one that looked too early does not fall asleep.
 * - Whoever looks, and leaves work to those that sleep, wakes one of them. It need not ring: the
 *   work was rung for, so that only who sleeps already does not know of it. Or that ring is still
 *   to come, and wakes one more.
 * - Whoever may do everything and finds nothing wakes nobody: there is nothing for anybody. */

static void ring(struct pool *p, enum monarch_way way, uint32_t who) {
    if (who)
        monarch_bell_ring(&p->shared.clients->engine[way], 1, who);
}

static void ring_all(struct pool *p, enum monarch_way way) {
    monarch_bell_ring(&p->shared.clients->engine[way], INT_MAX, MONARCH_ANYBODY);
}

/* An order of which a part is done, before all others of its queue. */
static void put_back(struct pool *p, struct job *job) {
    pthread_mutex_lock(&p->lock);
    monarch_push_first(&p->normal[MONARCH_FROM_SOURCE], job);
    uint32_t who = monarch_whom_it_needs(p, MONARCH_FROM_SOURCE);
    pthread_mutex_unlock(&p->lock);
    ring(p, MONARCH_FROM_SOURCE, who);
}

/* What the caller does next, if there is anything. */
static int look(struct pool *p, enum monarch_way way, enum monarch_role role, struct work *w) {
    struct monarch_bell *bell = &p->shared.clients->engine[way];
    uint32_t who = 0;
    pthread_mutex_lock(&p->lock);
    int found = monarch_find_work(p, way, role, w);
    if ((found || role != MONARCH_DOES_ALL) && __atomic_load_n(&bell->sleeping, __ATOMIC_SEQ_CST))
        who = monarch_whom_it_needs(p, way);
    pthread_mutex_unlock(&p->lock);
    if (who)
        monarch_bell_wake(bell, 1, who);
    return found;
}

static void begin(struct pool *p, struct job *job, char *buffer, int depth);

/* Between two parts of something else. A file that is begun here begins no other in its middle. */
static void serve_demands(struct pool *p, enum monarch_way way, char *buffer, int depth) {
    struct work w;
    while (depth < 2 && look(p, way, MONARCH_DOES_DEMANDS, &w)) {
        if (w.job) {
            begin(p, w.job, buffer, depth + 1);
        } else {
            monarch_fill_move(&p->shared, w.fill, w.unit, 1, buffer, NULL);
            leave(p, w.fill);
        }
    }
}

/* Not within what is done here itself: a thread waits for two things at most. */
static void serve_readers(struct monarch_engine *e, char *buffer) {
    static __thread int is_inside;
    if (is_inside)
        return;
    is_inside = 1;
    serve_demands((struct pool *)e, MONARCH_FROM_PEER, buffer, 1);
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
            serve_demands(p, monarch_way_of(f->job), buffer, depth);
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
        ring(p, way, who);
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
    struct worker *me = arg;
    struct pool *p = me->pool;
    struct monarch_bell *bell = &p->shared.clients->engine[me->way];
    char *buffer = malloc(MONARCH_CHUNK);
    while (buffer && !__atomic_load_n(&p->shared.stopping, __ATOMIC_ACQUIRE)) {
        struct work w;
        uint32_t seen = __atomic_load_n(&bell->rings, __ATOMIC_SEQ_CST);
        enum monarch_role role = monarch_role_of(p, me); /* who changes it rings */
        if (look(p, me->way, role, &w)) {
            do_work(p, &w, buffer);
            continue;
        }
        __atomic_fetch_add(&bell->sleeping, 1, __ATOMIC_SEQ_CST);
        if (!__atomic_load_n(&p->shared.stopping, __ATOMIC_SEQ_CST))
            monarch_bell_sleep(bell, seen, role);
        __atomic_fetch_sub(&bell->sleeping, 1, __ATOMIC_SEQ_CST);
    }
    free(buffer);
    return NULL;
}

/* --- from Python ---------------------------------------------------------------------------------
 */

static int start_threads(struct pool *p, struct worker *workers, enum monarch_way way,
                         int threads) {
    for (int i = 0; i < threads; i++) {
        workers[i] = (struct worker){.pool = p, .number = (uint32_t)i, .way = way};
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            return i;
    }
    return threads;
}

struct monarch_engine *monarch_engine_start(int threads, int width, int peer_threads,
                                            uint64_t block_bytes, struct monarch_clients *clients,
                                            struct monarch_fills *fills) {
    size_t workers = (size_t)threads + (size_t)peer_threads;
    struct pool *p = calloc(1, sizeof *p + workers * sizeof(struct worker));
    struct place *places = calloc(MONARCH_PLACES, sizeof *places);
    if (!p || !places) {
        free(p);
        free(places);
        return NULL;
    }
    p->shared.place = places;
    p->shared.block_bytes = block_bytes;
    p->shared.clients = clients;
    p->shared.fills = fills;
    p->shared.serve_readers = serve_readers;
    p->shared.kept_sources = monarch_can_drop_behind() ? 0 : UINT32_MAX;
    p->width = (uint32_t)width;
    for (int way = 0; way < MONARCH_WAYS; way++)
        p->turns[way].share = p->share;
    for (int i = 0; i < MONARCH_FILL_SLOTS; i++)
        p->slot[p->free_slots++] = MONARCH_FILL_SLOTS - 1 - i;
    pthread_mutex_init(&p->lock, NULL);
    p->threads = start_threads(p, p->worker, MONARCH_FROM_SOURCE, threads);
    if (p->threads)
        p->peer_threads = start_threads(p, p->worker + p->threads, MONARCH_FROM_PEER, peer_threads);
    if (p->threads)
        return &p->shared;
    free(places);
    free(p);
    return NULL;
}

void monarch_engine_source(struct monarch_engine *e, unsigned source, int root) {
    ((struct pool *)e)->roots[source] = root;
}

void monarch_engine_tier(struct monarch_engine *e, unsigned tier, int copies) {
    ((struct pool *)e)->copies[tier] = copies;
}

void monarch_engine_stamp(struct monarch_engine *e, unsigned tier, uint64_t salt) {
    ((struct pool *)e)->stamped |= 1U << tier;
    ((struct pool *)e)->salt = salt;
}

void monarch_engine_peer(struct monarch_engine *e, unsigned number, struct monarch_peer *peer) {
    __atomic_store_n(&e->peers[number], peer, __ATOMIC_RELEASE);
}

void monarch_engine_holdings(struct monarch_engine *e, struct monarch_holdings *h) {
    __atomic_store_n(&e->holdings, h, __ATOMIC_RELEASE);
}

void monarch_engine_limit(struct monarch_engine *e, uint64_t bytes_per_s, uint64_t ops_per_s) {
    __atomic_store_n(&e->bytes_per_s, bytes_per_s, __ATOMIC_RELAXED);
    __atomic_store_n(&e->ops_per_s, ops_per_s, __ATOMIC_RELAXED);
}

void monarch_engine_width(struct monarch_engine *e, int width) {
    struct pool *p = (struct pool *)e;
    __atomic_store_n(&p->width, (uint32_t)width, __ATOMIC_SEQ_CST);
    ring_all(p, MONARCH_FROM_SOURCE);
}

void monarch_engine_shares(struct monarch_engine *e, const uint32_t *shares) {
    struct pool *p = (struct pool *)e;
    pthread_mutex_lock(&p->lock);
    for (int rank = 1; rank < MONARCH_RANKS; rank++)
        p->share[rank] = shares[rank] < UINT16_MAX ? shares[rank] : UINT16_MAX;
    pthread_mutex_unlock(&p->lock);
}

static struct job *new_job(struct pool *p, const struct monarch_catalog *c, int kind, uint64_t id,
                           uint32_t tier, uint64_t copy, uint64_t sum, const int32_t *peers) {
    const struct monarch_entry *entry = &monarch_entries(c)[id];
    struct job *job = calloc(1, sizeof *job + entry->path_len + 1u);
    if (!job)
        return NULL;
    job->slot = -1;
    job->result.id = id;
    job->result.kind = (uint32_t)kind;
    job->result.tier = tier;
    job->result.copy = copy;
    job->result.mtime_ns = entry->mtime_ns;
    job->result.ctime_ns = entry->ctime_ns;
    job->entry = *entry;
    job->expected_sum = sum;
    /* Of an empty file no peer could say that it is still as it was. */
    for (int i = 0; i < MONARCH_ASKED; i++) {
        int peer = peers && p->peer_threads && entry->size ? peers[i] : -1;
        job->has_it |= (peer >= MONARCH_HAS_IT) << i;
        job->peer[i] = peer >= MONARCH_HAS_IT ? peer - MONARCH_HAS_IT : peer;
    }
    job->source_root = p->roots[entry->source];
    job->copies = p->copies[tier];
    job->is_stamped = p->stamped >> tier & 1;
    job->stamp = monarch_stamp(p->salt, id);
    memcpy(job->path, monarch_pool(c, entry->path), entry->path_len + 1u);
    return job;
}

/* After a change that may have made work of any kind. */
static void unlock_and_ring(struct pool *p) {
    uint32_t who[MONARCH_WAYS];
    for (int way = 0; way < MONARCH_WAYS; way++)
        who[way] = monarch_whom_it_needs(p, way);
    pthread_mutex_unlock(&p->lock);
    for (int way = 0; way < MONARCH_WAYS; way++)
        ring(p, way, who[way]);
}

/* Takes orders that nobody else sees yet into a queue. */
static int enqueue(struct pool *p, struct queue to[], int in_use, struct queue *fresh) {
    int made = (int)fresh->length;
    pthread_mutex_lock(&p->lock);
    for (struct job *job; (job = monarch_pop(fresh));) {
        job->result.in_use = in_use != 0;
        p->pending[job->result.in_use]++;
        if (job->peer[0] >= 0)
            p->asked[job->peer[0]]++;
        monarch_push(&to[monarch_way_of(job)], job);
        if (monarch_is_awaited(job))
            monarch_remember(p, job);
    }
    unlock_and_ring(p);
    return made;
}

int monarch_engine_submit(struct monarch_engine *e, const struct monarch_catalog *c, int kind,
                          int in_use, uint64_t n, const uint64_t *ids, const uint32_t *tiers,
                          const uint64_t *copies, const uint64_t *sums, const int32_t *peers) {
    struct pool *p = (struct pool *)e;
    struct queue fresh = {NULL, NULL, 0};
    for (uint64_t i = 0; i < n; i++) {
        struct job *job = new_job(p, c, kind, ids[i], tiers[i], copies[i], sums ? sums[i] : 0,
                                  peers ? peers + i * MONARCH_ASKED : NULL);
        if (!job)
            break;
        monarch_push(&fresh, job);
    }
    return enqueue(p, in_use ? p->in_use : p->normal, in_use, &fresh);
}

int monarch_engine_drop(struct monarch_engine *e, uint64_t n, const uint64_t *ids,
                        const uint32_t *tiers, const uint64_t *copies, const uint64_t *sizes) {
    struct pool *p = (struct pool *)e;
    struct queue fresh = {NULL, NULL, 0};
    for (uint64_t i = 0; i < n; i++) {
        struct job *job = calloc(1, sizeof *job + 1);
        if (!job)
            break;
        job->slot = job->peer[0] = -1;
        job->result.kind = MONARCH_DROP;
        job->result.id = ids[i];
        job->result.tier = tiers[i];
        job->result.copy = copies[i];
        job->result.bytes = sizes[i];
        job->copies = p->copies[tiers[i]];
        monarch_push(&fresh, job);
    }
    return enqueue(p, &p->urgent, 1, &fresh);
}

uint64_t monarch_engine_results(struct monarch_engine *e, struct monarch_result *out,
                                uint64_t max) {
    struct pool *p = (struct pool *)e;
    uint64_t n = 0;
    pthread_mutex_lock(&p->lock);
    for (struct job *job; n < max && (job = monarch_pop(&p->done));) {
        p->pending[job->result.in_use]--;
        if (job->peer[0] >= 0)
            p->asked[job->peer[0]]--;
        out[n++] = job->result;
        monarch_push(&p->told, job);
    }
    p->rung = p->done.first != NULL;
    pthread_mutex_unlock(&p->lock);
    return n;
}

void monarch_engine_settle(struct monarch_engine *e) {
    struct pool *p = (struct pool *)e;
    unsigned free_before;
    pthread_mutex_lock(&p->lock);
    free_before = p->free_slots;
    for (struct job *job; (job = monarch_pop(&p->told)); free(job))
        if (job->slot >= 0) {
            __atomic_store_n(&e->fills->word[job->slot], 0, __ATOMIC_SEQ_CST);
            p->slot[p->free_slots++] = job->slot;
        }
    if (p->free_slots > free_before && free_before <= MONARCH_SLOTS_OF_SOURCE)
        unlock_and_ring(p); /* orders may have waited for a slot */
    else
        pthread_mutex_unlock(&p->lock);
}

uint64_t monarch_engine_pending(struct monarch_engine *e, int in_use) {
    struct pool *p = (struct pool *)e;
    pthread_mutex_lock(&p->lock);
    uint64_t n = p->pending[in_use != 0];
    pthread_mutex_unlock(&p->lock);
    return n;
}

void monarch_engine_queues(struct monarch_engine *e, uint32_t *lengths, uint32_t n) {
    struct pool *p = (struct pool *)e;
    pthread_mutex_lock(&p->lock);
    memcpy(lengths, p->asked, (n < MONARCH_MAX_PEERS ? n : MONARCH_MAX_PEERS) * sizeof *lengths);
    pthread_mutex_unlock(&p->lock);
}

uint64_t monarch_engine_bytes(struct monarch_engine *e) {
    return __atomic_load_n(&e->bytes, __ATOMIC_RELAXED);
}

uint64_t monarch_engine_peer_bytes(struct monarch_engine *e) {
    return __atomic_load_n(&e->peer_bytes, __ATOMIC_RELAXED);
}

/* Unfinished fills that no thread works on any more. */
static void abandon_fills(struct pool *p) {
    for (struct fill *f; (f = p->fills);) {
        p->fills = f->next;
        struct job *job = f->job;
        f->failed = 1;
        monarch_fill_end(&p->shared, f);
        monarch_push(&p->done, job);
    }
}

void monarch_engine_stop(struct monarch_engine *e) {
    struct pool *p = (struct pool *)e;
    __atomic_store_n(&e->stopping, 1, __ATOMIC_SEQ_CST);
    for (int way = 0; way < MONARCH_WAYS; way++)
        ring_all(p, way);
    for (int i = 0; i < p->threads + p->peer_threads; i++)
        pthread_join(p->worker[i].thread, NULL);
    abandon_fills(p);
    for (struct job *job; (job = monarch_pop(&p->done)); free(job))
        free(job->result.block_sums);
    struct queue *rest[] = {&p->urgent,    &p->told,      &p->in_use[0],
                            &p->in_use[1], &p->normal[0], &p->normal[1]};
    for (int i = 0; i < 6; i++)
        for (struct job *job; (job = monarch_pop(rest[i])); free(job))
            ;
    pthread_mutex_destroy(&p->lock);
    free(e->place);
    free(p);
}

void monarch_free(void *memory) { free(memory); }

/* glibc raises its threshold for separate mappings with every large block that is freed, and makes
 * an arena for each thread; both keep a scan's or a manifest's memory for good. */
void monarch_limit_malloc(void) {
    mallopt(M_MMAP_THRESHOLD, 128 * 1024);
    mallopt(M_ARENA_MAX, 2);
}

int monarch_syncfs(int fd) { return syncfs(fd) == 0 ? 0 : -errno; }
