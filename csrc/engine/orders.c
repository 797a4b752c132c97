/* Makes orders from the catalog, queues them and withdraws them. */
#include "engine/orders.h"

#include <stdlib.h>
#include <string.h>

#include "copy/pack.h"
#include "engine/waking.h"
#include "publish/writer.h"

struct job *monarch_new_order(struct pool *p, const struct monarch_catalog *c, int kind,
                              uint64_t id, uint32_t tier, uint64_t copy, uint64_t sum,
                              const int32_t *peers) {
    const struct monarch_entry *entry = &monarch_entries(c)[id];
    struct job *job = calloc(1, sizeof *job + entry->path_len + 1u);
    if (!job)
        return NULL;
    job->slot = job->handed = -1;
    job->result.id = id;
    job->result.kind = (uint32_t)kind;
    job->result.tier = tier;
    job->result.copy = copy;
    job->result.home = -1;
    job->result.mtime_ns = entry->mtime_ns;
    job->result.ctime_ns = entry->ctime_ns;
    job->entry = *entry;
    job->expected_sum = sum;
    /* An empty file's order asks no peer: a peer that sends no bytes cannot vouch that the file is
     * unchanged. */
    for (int i = 0; i < MONARCH_ASKED + MONARCH_MOVES; i++) {
        int is_asked = i < MONARCH_ASKED && peers && p->peer_threads && entry->size;
        int peer = is_asked ? peers[i] : -1;
        job->has_it |= (peer >= MONARCH_HAS_IT) << i;
        job->peer[i] = peer >= MONARCH_HAS_IT ? peer - MONARCH_HAS_IT : peer;
    }
    job->source_root = p->roots[entry->source];
    job->copies = p->copies[tier];
    job->is_stamped = p->stamped >> tier & 1;
    job->stamp = monarch_stamp(p->salt, id);
    memcpy(job->path, monarch_pool(c, entry->path), entry->path_len + 1u);
    if (kind == MONARCH_FILL)
        monarch_pack_meet(&p->shared, job);
    return job;
}

/* A PAGE_IN does not count as pending: nothing waits for it, and it is no sign that fills are under
 * way. */
void monarch_count(struct pool *p, const struct job *job, int more) {
    if (job->result.kind != MONARCH_PAGE_IN)
        p->pending[job->result.in_use][monarch_way_of(job)] += (uint64_t)(int64_t)more;
    if (job->result.kind == MONARCH_FILL && monarch_way_of(job) == MONARCH_FROM_SOURCE)
        p->source_fills += (uint32_t)more;
    if (job->peer[0] >= 0)
        p->asked[job->peer[0]] += (uint32_t)more;
}

void monarch_enqueue(struct pool *p, struct queue to[], int in_use, struct job *job) {
    job->result.in_use = in_use != 0;
    monarch_count(p, job, 1);
    monarch_push(&to[monarch_way_of(job)], job);
    if (monarch_is_awaited(job))
        monarch_remember(p, job);
}

/* Moves the orders of `fresh`, which no other thread sees yet, to the queues `to`. Returns their
 * number. An order for which a descriptor waits goes into the queue of files in use instead, so
 * that it does not wait behind files that are filled ahead. */
static int enqueue_all(struct pool *p, struct queue to[], int in_use, struct queue *fresh) {
    int made = (int)fresh->length;
    pthread_mutex_lock(&p->lock);
    for (struct job *job; (job = monarch_pop(fresh));)
        monarch_enqueue(p, job->is_kept ? p->in_use : to, in_use || job->is_kept, job);
    monarch_unlock_and_ring(p);
    return made;
}

int monarch_engine_submit(struct monarch_engine *e, const struct monarch_catalog *c, int kind,
                          int in_use, uint64_t n, const uint64_t *ids, const uint32_t *tiers,
                          const uint64_t *copies, const uint64_t *sums, const int32_t *peers) {
    struct pool *p = (struct pool *)e;
    struct queue fresh = {NULL, NULL, 0};
    /* Each order gets a copy of its entry. The lock is needed because publishing may clear
     * `copy_ino` of any entry meanwhile. */
    if (e->writer)
        pthread_mutex_lock(&e->writer->lock);
    for (uint64_t i = 0; i < n; i++) {
        struct job *job =
            monarch_new_order(p, c, kind, ids[i], tiers[i], copies[i], sums ? sums[i] : 0,
                              peers ? peers + i * MONARCH_ASKED : NULL);
        if (!job)
            break;
        if (p->listener)
            p->listener->made(p, job);
        monarch_push(&fresh, job);
    }
    if (e->writer)
        pthread_mutex_unlock(&e->writer->lock);
    struct queue *queue = in_use ? p->in_use : p->normal;
    return enqueue_all(p, kind == MONARCH_PAGE_IN ? &p->to_page_in : queue, in_use, &fresh);
}

int monarch_engine_drop(struct monarch_engine *e, uint64_t n, const uint64_t *ids,
                        const uint32_t *tiers, const uint64_t *copies, const uint64_t *sizes) {
    struct pool *p = (struct pool *)e;
    struct queue fresh = {NULL, NULL, 0};
    for (uint64_t i = 0; i < n; i++) {
        struct job *job = calloc(1, sizeof *job + 1);
        if (!job)
            break;
        job->slot = job->handed = job->peer[0] = -1;
        job->result.kind = MONARCH_DROP;
        job->result.id = ids[i];
        job->result.tier = tiers[i];
        job->result.copy = copies[i];
        job->result.bytes = sizes[i];
        job->copies = p->copies[tiers[i]];
        monarch_push(&fresh, job);
    }
    return enqueue_all(p, &p->urgent, 1, &fresh);
}

uint64_t monarch_engine_withdraw(struct monarch_engine *e, uint64_t n, const uint64_t *ids) {
    struct pool *p = (struct pool *)e;
    uint64_t taken = 0;
    pthread_mutex_lock(&p->lock);
    for (uint64_t i = 0; i < n; i++) {
        struct job *job = monarch_queued_fill(p, ids[i]);
        /* Withdraw no order whose file a program uses. That includes an order that has a
         * descriptor, or for which a descriptor waits: a program has read that file. */
        if (!job || job->result.in_use || job->is_kept || job->handed >= 0)
            continue;
        monarch_unqueue(p, job);
        job->result.status = MONARCH_ABANDONED;
        monarch_push(&p->done, job);
        taken++;
    }
    pthread_mutex_unlock(&p->lock);
    return taken;
}
