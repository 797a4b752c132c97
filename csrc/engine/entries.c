#include "engine/entries.h"

/* --- queues ----------------------------------------------------------------------------------- */

void monarch_push(struct queue *q, struct job *job) {
    job->next = NULL;
    job->before = q->last;
    job->queue = q;
    *(q->last ? &q->last->next : &q->first) = job;
    q->last = job;
    q->length++;
}

void monarch_push_first(struct queue *q, struct job *job) {
    job->next = q->first;
    job->before = NULL;
    job->queue = q;
    *(q->first ? &q->first->before : &q->last) = job;
    q->first = job;
    q->length++;
}

void monarch_take_out(struct job *job) {
    struct queue *q = job->queue;
    *(job->before ? &job->before->next : &q->first) = job->next;
    *(job->next ? &job->next->before : &q->last) = job->before;
    job->queue = NULL;
    q->length--;
}

struct job *monarch_pop(struct queue *q) {
    struct job *job = q->first;
    if (job)
        monarch_take_out(job);
    return job;
}

/* --- orders by entry -------------------------------------------------------------------------- */

enum monarch_origin monarch_origin_of(const struct job *job) {
    return job->peer[0] < 0 ? MONARCH_FROM_SOURCE : MONARCH_FROM_PEER;
}

int monarch_is_awaited(const struct job *job) {
    return job->result.kind == MONARCH_FILL || job->result.kind == MONARCH_CHECK;
}

static struct job **bucket_of(struct pool *p, uint64_t id) {
    return &p->bucket[id % MONARCH_BUCKETS];
}

void monarch_remember(struct pool *p, struct job *job) {
    struct job **b = bucket_of(p, job->result.id);
    job->same = *b;
    *b = job;
}

static void forget(struct pool *p, const struct job *job) {
    for (struct job **at = bucket_of(p, job->result.id); *at; at = &(*at)->same)
        if (*at == job) {
            *at = job->same;
            return;
        }
}

/* Searches a bucket's list from `job` on. Returns the first order for the entry `id`, or NULL. */
static struct job *next_for(struct job *job, uint64_t id) {
    while (job && job->result.id != id)
        job = job->same;
    return job;
}

struct job *monarch_queued_fill(const struct pool *p, uint64_t id) {
    struct job *job = next_for(p->bucket[id % MONARCH_BUCKETS], id);
    while (job && job->result.kind != MONARCH_FILL)
        job = next_for(job->same, id);
    return job;
}

struct job *monarch_order_of(const struct pool *p, uint64_t id) {
    return next_for(p->bucket[id % MONARCH_BUCKETS], id);
}

int monarch_has_order(const struct pool *p, uint64_t id) { return monarch_order_of(p, id) != NULL; }

void monarch_unqueue(struct pool *p, struct job *job) {
    monarch_take_out(job);
    if (monarch_is_awaited(job))
        forget(p, job);
}

void monarch_free_slot(struct pool *p, struct job *job) {
    if (job->slot < 0)
        return;
    __atomic_store_n(&p->shared.fills->word[job->slot], 0, __ATOMIC_SEQ_CST);
    p->slot[p->free_slots++] = job->slot;
    job->slot = -1;
}

/* --- unfinished fills ------------------------------------------------------------------------- */

int monarch_is_claimed(const struct fill *f, uint64_t unit) {
    return f->claimed[unit / 64] >> (unit % 64) & 1;
}

void monarch_claim(struct fill *f, uint64_t unit) { f->claimed[unit / 64] |= 1ULL << (unit % 64); }

static struct fill **begun_of(struct pool *p, uint64_t id) {
    return &p->begun[id % MONARCH_BUCKETS];
}

struct fill *monarch_fill_of(const struct pool *p, uint64_t id) {
    struct fill *f = p->begun[id % MONARCH_BUCKETS];
    while (f && f->job->result.id != id)
        f = f->same;
    return f;
}

static void put_last(struct pool *p, struct fill *f) {
    struct fill **at = &p->fills;
    while (*at)
        at = &(*at)->next;
    f->next = NULL;
    *at = f;
}

static void take_from_list(struct pool *p, const struct fill *f) {
    struct fill **at = &p->fills;
    while (*at && *at != f)
        at = &(*at)->next;
    if (*at)
        *at = f->next;
}

void monarch_add_fill(struct pool *p, struct fill *f) {
    struct fill **first = begun_of(p, f->job->result.id);
    f->same = *first;
    *first = f;
    put_last(p, f);
}

void monarch_remove_fill(struct pool *p, const struct fill *f) {
    struct fill **at = begun_of(p, f->job->result.id);
    while (*at && *at != f)
        at = &(*at)->same;
    if (*at)
        *at = f->same;
    take_from_list(p, f);
}

static void exchange(struct pool *p, struct fill *a, struct fill *b) {
    struct fill **at_a = &p->fills, **at_b = &p->fills, *next;
    while (*at_a != a)
        at_a = &(*at_a)->next;
    while (*at_b != b)
        at_b = &(*at_b)->next;
    *at_a = b;
    *at_b = a;
    next = a->next;
    a->next = b->next;
    b->next = next;
}

void monarch_move_last(struct pool *p, struct fill *f, struct fill *first) {
    exchange(p, first, f);
    take_from_list(p, f);
    put_last(p, f);
}
