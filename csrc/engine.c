/* The threads that copy, and their queues. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doorbell.h"
#include "engine.h"

struct queue {
    struct job *first, *last;
};

struct pool {
    struct monarch_engine shared; /* first: job.c sees only this */
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct queue urgent, normal, done;
    uint64_t pending; /* queued, running, or done and not yet told */
    uint32_t *doorbell;
    int roots[MONARCH_MAX_SOURCES], copies[MONARCH_MAX_TIERS];
    int threads;
    pthread_t thread[];
};

static void push(struct queue *q, struct job *job) {
    job->next = NULL;
    if (q->last)
        q->last->next = job;
    else
        q->first = job;
    q->last = job;
}

static struct job *pop(struct queue *q) {
    struct job *job = q->first;
    if (job) {
        q->first = job->next;
        if (!q->first)
            q->last = NULL;
    }
    return job;
}

static struct job *next_job(struct pool *p) {
    struct job *job = NULL;
    pthread_mutex_lock(&p->lock);
    while (!(job = pop(&p->urgent)) && !(job = pop(&p->normal)) && !p->shared.stopping)
        pthread_cond_wait(&p->work, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return job;
}

static void *work(void *arg) {
    struct pool *p = arg;
    char *buffer = malloc(MONARCH_CHUNK);
    for (struct job *job; buffer && (job = next_job(p));) {
        monarch_do_job(&p->shared, job, buffer);
        pthread_mutex_lock(&p->lock);
        int was_empty = !p->done.first;
        push(&p->done, job);
        pthread_mutex_unlock(&p->lock);
        if (was_empty) /* a daemon that has been rung for one takes all */
            monarch_doorbell_ring(p->doorbell);
    }
    free(buffer);
    return NULL;
}

struct monarch_engine *monarch_engine_start(int threads, uint64_t block_bytes, uint32_t *doorbell) {
    struct pool *p = calloc(1, sizeof *p + (size_t)threads * sizeof(pthread_t));
    if (!p)
        return NULL;
    p->shared.block_bytes = block_bytes;
    p->doorbell = doorbell;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    for (; p->threads < threads; p->threads++)
        if (pthread_create(&p->thread[p->threads], NULL, work, p) != 0)
            break;
    if (p->threads)
        return &p->shared;
    free(p);
    return NULL;
}

void monarch_engine_source(struct monarch_engine *e, unsigned source, int root) {
    ((struct pool *)e)->roots[source] = root;
}

void monarch_engine_tier(struct monarch_engine *e, unsigned tier, int copies) {
    ((struct pool *)e)->copies[tier] = copies;
}

static struct job *new_job(struct pool *p, const struct monarch_catalog *c, int kind, uint64_t id,
                           uint32_t tier, uint64_t copy, uint64_t sum) {
    const struct monarch_entry *entry = &monarch_entries(c)[id];
    struct job *job = calloc(1, sizeof *job + entry->path_len + 1u);
    if (!job)
        return NULL;
    job->result.id = id;
    job->result.kind = (uint32_t)kind;
    job->result.tier = tier;
    job->result.copy = copy;
    job->result.mtime_ns = entry->mtime_ns;
    job->result.ctime_ns = entry->ctime_ns;
    job->entry = *entry;
    job->expected_sum = sum;
    job->source_root = p->roots[entry->source];
    job->copies = p->copies[tier];
    memcpy(job->path, monarch_pool(c, entry->path), entry->path_len + 1u);
    return job;
}

/* Takes `made` orders that nobody else sees yet into the queue. */
static int enqueue(struct pool *p, struct queue *to, struct queue q, uint64_t made) {
    pthread_mutex_lock(&p->lock);
    if (q.first) {
        if (to->last)
            to->last->next = q.first;
        else
            to->first = q.first;
        to->last = q.last;
    }
    p->pending += made;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    return (int)made;
}

int monarch_engine_submit(struct monarch_engine *e, const struct monarch_catalog *c, int kind,
                          int urgent, uint64_t n, const uint64_t *ids, const uint32_t *tiers,
                          const uint64_t *copies, const uint64_t *sums) {
    struct pool *p = (struct pool *)e;
    struct queue q = {NULL, NULL};
    uint64_t made = 0;
    for (; made < n; made++) {
        struct job *job =
            new_job(p, c, kind, ids[made], tiers[made], copies[made], sums ? sums[made] : 0);
        if (!job)
            break;
        push(&q, job);
    }
    return enqueue(p, urgent ? &p->urgent : &p->normal, q, made);
}

int monarch_engine_drop(struct monarch_engine *e, uint64_t n, const uint32_t *tiers,
                        const uint64_t *copies, const uint64_t *sizes) {
    struct pool *p = (struct pool *)e;
    struct queue q = {NULL, NULL};
    uint64_t made = 0;
    for (; made < n; made++) {
        struct job *job = calloc(1, sizeof *job + 1);
        if (!job)
            break;
        job->result.kind = MONARCH_DROP;
        job->result.tier = tiers[made];
        job->result.copy = copies[made];
        job->result.bytes = sizes[made];
        job->copies = p->copies[tiers[made]];
        push(&q, job);
    }
    return enqueue(p, &p->urgent, q, made);
}

uint64_t monarch_engine_results(struct monarch_engine *e, struct monarch_result *out,
                                uint64_t max) {
    struct pool *p = (struct pool *)e;
    uint64_t n = 0;
    pthread_mutex_lock(&p->lock);
    for (struct job *job; n < max && (job = pop(&p->done)); free(job))
        out[n++] = job->result;
    p->pending -= n;
    pthread_mutex_unlock(&p->lock);
    return n;
}

uint64_t monarch_engine_pending(struct monarch_engine *e) {
    struct pool *p = (struct pool *)e;
    pthread_mutex_lock(&p->lock);
    uint64_t n = p->pending;
    pthread_mutex_unlock(&p->lock);
    return n;
}

uint64_t monarch_engine_bytes(struct monarch_engine *e) {
    return __atomic_load_n(&e->bytes, __ATOMIC_RELAXED);
}

void monarch_engine_stop(struct monarch_engine *e) {
    struct pool *p = (struct pool *)e;
    pthread_mutex_lock(&p->lock);
    __atomic_store_n(&e->stopping, 1, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->threads; i++)
        pthread_join(p->thread[i], NULL);
    struct queue *all[] = {&p->urgent, &p->normal, &p->done};
    for (int i = 0; i < 3; i++)
        for (struct job *job; (job = pop(all[i])); free(job))
            free(job->result.block_sums);
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
