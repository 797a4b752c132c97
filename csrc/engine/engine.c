/* The functions by which Python starts the copy engine, sets its parameters, takes its results and
 * stops it. */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "copy/fill.h"
#include "copy/flow.h"
#include "copy/pack.h"
#include "copy/source_file.h"
#include "engine/entries.h"
#include "engine/orders.h"
#include "engine/schedule.h"
#include "engine/work.h"
#include "peers/peers.h"
#include "publish/writer.h"
#include "shared/doorbell.h"
#include "shared/joining.h"

/* The shortest time slice that the kernel grants [ns]. */
#define SLICE_NS 100000

struct monarch_engine *monarch_engine_start(int threads, int width, int peer_threads,
                                            uint64_t block_bytes, struct monarch_clients *clients,
                                            struct monarch_fills *fills) {
    size_t workers = (size_t)threads + (size_t)peer_threads;
    struct pool *p = calloc(1, sizeof *p + workers * sizeof(struct worker));
    struct endpoint *endpoints = calloc(MONARCH_ENDPOINTS, sizeof *endpoints);
    if (!p || !endpoints) {
        free(p);
        free(endpoints);
        return NULL;
    }
    p->shared.endpoint = endpoints;
    p->shared.block_bytes = block_bytes;
    p->shared.clients = clients;
    p->shared.fills = fills;
    p->shared.serve_readers = monarch_serve_readers;
    p->shared.kept_sources = monarch_can_drop_behind() ? 0 : UINT32_MAX;
    p->width[MONARCH_FROM_SOURCE] = (uint32_t)width;
    p->width[MONARCH_FROM_PEER] = (uint32_t)peer_threads;
    for (int origin = 0; origin < MONARCH_ORIGINS; origin++)
        p->fair[origin].share = p->share;
    for (int i = 0; i < MONARCH_FILL_SLOTS; i++)
        p->slot[p->free_slots++] = MONARCH_FILL_SLOTS - 1 - i;
    pthread_mutex_init(&p->lock, NULL);
    p->most_threads = threads;
    if (monarch_start_threads(p, peer_threads))
        return &p->shared;
    free(endpoints);
    free(p);
    return NULL;
}

void monarch_engine_publish(struct monarch_engine *e, struct monarch_writer *w,
                            struct monarch_control *control) {
    e->control = control;
    e->writer = w;
}

void monarch_engine_await(struct monarch_engine *e, int is_awaited) {
    struct pool *p = (struct pool *)e;
    pthread_mutex_lock(&p->lock);
    p->awaits_results = is_awaited;
    pthread_mutex_unlock(&p->lock);
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

void monarch_engine_width(struct monarch_engine *e, int width, int peer_width, int rests) {
    struct pool *p = (struct pool *)e;
    pthread_mutex_lock(&p->lock);
    p->width[MONARCH_FROM_SOURCE] = (uint32_t)width;
    p->width[MONARCH_FROM_PEER] = (uint32_t)peer_width;
    __atomic_store_n(&p->rests, rests, __ATOMIC_RELAXED);
    monarch_unlock_and_ring(p);
}

void monarch_engine_shares(struct monarch_engine *e, const uint32_t *shares) {
    struct pool *p = (struct pool *)e;
    pthread_mutex_lock(&p->lock);
    for (int rank = 1; rank < MONARCH_RANKS; rank++)
        p->share[rank] = shares[rank] < UINT16_MAX ? shares[rank] : UINT16_MAX;
    pthread_mutex_unlock(&p->lock);
}

uint64_t monarch_engine_results(struct monarch_engine *e, struct monarch_result *out,
                                uint64_t max) {
    struct pool *p = (struct pool *)e;
    uint64_t n = 0;
    pthread_mutex_lock(&p->lock);
    for (struct job *job; n < max && (job = monarch_pop(&p->done));) {
        monarch_count(p, job, -1);
        out[n++] = job->result;
        monarch_push(&p->told, job);
    }
    p->rung = p->done.first != NULL;
    pthread_mutex_unlock(&p->lock);
    return n;
}

static void free_job(struct job *job) {
    if (job->handed >= 0)
        close(job->handed);
    monarch_pack_leave(job);
    free(job->result.block_sums);
    free(job);
}

void monarch_engine_settle(struct monarch_engine *e) {
    struct pool *p = (struct pool *)e;
    unsigned free_before;
    pthread_mutex_lock(&p->lock);
    free_before = p->free_slots;
    for (struct job *job; (job = monarch_pop(&p->told)); free_job(job))
        monarch_free_slot(p, job);
    if (p->free_slots > free_before && free_before <= MONARCH_SLOTS_OF_SOURCE)
        /* Fills from peers could not begin, because they must leave MONARCH_SLOTS_OF_SOURCE slots
         * free. Now more slots are free, so wake the threads. */
        monarch_unlock_and_ring(p);
    else
        pthread_mutex_unlock(&p->lock);
}

uint64_t monarch_engine_pending(struct monarch_engine *e, int in_use, int origin) {
    struct pool *p = (struct pool *)e;
    pthread_mutex_lock(&p->lock);
    uint64_t n = 0;
    for (int i = 0; i < MONARCH_ORIGINS; i++)
        n += origin == i || origin == MONARCH_ORIGINS ? p->pending[in_use != 0][i] : 0;
    pthread_mutex_unlock(&p->lock);
    return n;
}

void monarch_engine_queues(struct monarch_engine *e, uint32_t *lengths, uint32_t n) {
    struct pool *p = (struct pool *)e;
    pthread_mutex_lock(&p->lock);
    memcpy(lengths, p->asked, (n < MONARCH_MAX_PEERS ? n : MONARCH_MAX_PEERS) * sizeof *lengths);
    pthread_mutex_unlock(&p->lock);
}

uint64_t monarch_engine_count(struct monarch_engine *e, enum monarch_count what) {
    return __atomic_load_n(&e->counts[what], __ATOMIC_RELAXED);
}

int monarch_engine_reads_sources(struct monarch_engine *e) {
    struct pool *p = (struct pool *)e;
    pthread_mutex_lock(&p->lock);
    int reads = p->source_fills > 0;
    pthread_mutex_unlock(&p->lock);
    return reads;
}

/* Ends unfinished fills as failed. Call this after all threads have ended. */
static void abandon_fills(struct pool *p) {
    for (struct fill *f; (f = p->fills);) {
        p->fills = f->next;
        struct job *job = f->job;
        f->failed = 1;
        monarch_fill_end(&p->shared, f);
        monarch_push(&p->done, job);
    }
}

static void free_orders(struct queue *q) {
    for (struct job *job; (job = monarch_pop(q)); free_job(job))
        ;
}

/* Wakes all threads of this origin (the sources or the peers), so that they see `stopping`. Ignores
 * the bell's count of sleeping threads: clients can write to the bell, so the count may be
 * wrong. */
static void ring_all(struct pool *p, enum monarch_origin origin) {
    struct monarch_bell *bell = &p->shared.clients->engine[origin];
    __atomic_fetch_add(&bell->rings, 1, __ATOMIC_SEQ_CST);
    monarch_futex_wake(&bell->rings);
}

int monarch_engine_stop(struct monarch_engine *e, int limit_ms) {
    struct pool *p = (struct pool *)e;
    struct timespec until = monarch_join_limit(limit_ms);
    int left = 0;
    __atomic_store_n(&e->stopping, 1, __ATOMIC_SEQ_CST);
    if (p->listener)
        p->listener->ends(p);
    for (int origin = 0; origin < MONARCH_ORIGINS; origin++)
        ring_all(p, origin);
    for (int i = 0; i < MONARCH_MAX_PEERS; i++)
        /* Close the connections to the peer. Otherwise a peer that sends its answer very slowly
         * could keep a thread waiting until the time limit of the answer. */
        if (e->peers[i])
            monarch_peer_hang_up(e->peers[i]);
    for (int i = 0; i < p->peer_threads; i++)
        left += !monarch_join(p->worker[p->most_threads + i].thread, &until);
    /* A thread that is joined below may have started further threads before it ended. It has
     * counted them in p->threads. So read p->threads again after each join. */
    for (int i = 0; i < __atomic_load_n(&p->threads, __ATOMIC_SEQ_CST); i++)
        left += !monarch_join(p->worker[i].thread, &until);
    if (p->listener)
        left += p->listener->joins(p, &until);
    if (left)
        return left;
    if (p->listener)
        p->listener->frees(p);
    abandon_fills(p);
    struct queue *rest[] = {&p->urgent,    &p->done,      &p->told,      &p->in_use[0],
                            &p->in_use[1], &p->normal[0], &p->normal[1], &p->to_page_in};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        free_orders(rest[i]);
    for (int i = 0; i < MONARCH_MAX_PEERS; i++)
        for (int in_use = 0; in_use < 2; in_use++)
            free_orders(&p->late[in_use].of[i]);
    pthread_mutex_destroy(&p->lock);
    for (int i = 0; i < MONARCH_MAX_SOURCES; i++)
        monarch_pack_free(e->pack[i]);
    free(p->grant.home);
    free(e->endpoint);
    free(p);
    return 0;
}

/* Fixes two parameters of malloc. Without this, glibc would keep the freed memory of a scan or a
 * manifest, instead of returning it to the kernel. M_MMAP_THRESHOLD: each larger block has its own
 * mapping, which is unmapped when the block is freed. By default, glibc raises this limit when such
 * a block is freed. M_ARENA_MAX: by default, glibc makes new arenas for new threads, and arenas
 * keep freed memory. */
void monarch_limit_malloc(void) {
    mallopt(M_MMAP_THRESHOLD, 128 * 1024);
    mallopt(M_ARENA_MAX, 2);
}

/* The kernel's struct sched_attr. libc's headers define it only since glibc 2.41. */
struct scheduling {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

void monarch_set_scheduling(void) {
    struct scheduling now;
    /* A kernel that does not support a time slice per thread reports a slice of 0. */
    if (syscall(SYS_sched_getattr, 0, &now, sizeof now, 0) != 0 || !now.runtime_ns ||
        (now.policy != SCHED_OTHER && now.policy != SCHED_BATCH))
        return;
    now.policy = SCHED_BATCH;
    now.runtime_ns = SLICE_NS;
    syscall(SYS_sched_setattr, 0, &now, 0);
}

int monarch_syncfs(int fd) { return syncfs(fd) == 0 ? 0 : -errno; }
