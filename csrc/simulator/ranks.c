/* Training: each rank uses its samples in order, and all ranks meet at a barrier after each
 * step. */
#include "simulator/state.h"

void sim_drop(struct monarch_sim *s, uint32_t rank) {
    s->rank[rank].staged -= size_at(s, rank, s->rank[rank].dropped);
    s->rank[rank].dropped++;
}

static void use_next(struct monarch_sim *s, uint32_t rank, double *at) {
    struct rank *r = &s->rank[rank];
    uint32_t node = rank / s->job.most_ranks;
    int32_t file = file_at(s, rank, r->used);
    if (*at <= r->clock) {
        s->out->ready[r->used / per_epoch(s)] += file >= 0;
        *at = r->clock;
    }
    double compute = size_of(s, file) / s->job.compute[node];
    s->out->stall[rank] += *at - r->clock;
    s->out->rank_compute[rank] += compute;
    r->clock = *at + compute;
    r->used++;
}

/* Uses the samples that have arrived, up to the barrier. Returns whether the rank has just reached
 * the barrier. */
static int use(struct monarch_sim *s, uint32_t rank) {
    struct rank *r = &s->rank[rank];
    uint64_t end = (s->step + 1) * s->job.batch, from = r->used;
    if (r->is_at_barrier)
        return 0;
    while (r->used < r->fetched && r->used < end) {
        double *at = &known_of(s, r->used)->at[place_of(s, rank, r->used)];
        if (*at < 0)
            break;
        use_next(s, rank, at);
    }
    r->is_at_barrier = r->used == end;
    if (r->used > from)
        s->on_room(s, rank,
                   s->job.stages ? known_of(s, from)->at[place_of(s, rank, from)] : r->clock);
    return r->is_at_barrier;
}

static void release(struct monarch_sim *s, double now) {
    s->step_end = now;
    s->step++;
    s->arrived = 0;
    if (s->step % s->job.steps == 0)
        s->out->epoch_end[s->step / s->job.steps - 1] = now;
    for (uint32_t i = 0; i < end_of_ranks(s); i = next_rank(s, i)) {
        s->rank[i].clock = now;
        s->rank[i].is_at_barrier = 0;
    }
    for (uint32_t i = 0; i < end_of_ranks(s) && !s->job.stages; i = next_rank(s, i))
        s->on_room(s, i, now);
}

/* Ends a step. Returns whether training continues at once, without a checkpoint. */
static int close_step(struct monarch_sim *s) {
    double first = s->rank[0].clock, last = first;
    for (uint32_t i = next_rank(s, 0); i < end_of_ranks(s); i = next_rank(s, i)) {
        first = s->rank[i].clock < first ? s->rank[i].clock : first;
        last = s->rank[i].clock > last ? s->rank[i].clock : last;
    }
    if (last - s->step_end > s->out->imbalance * (first - s->step_end))
        s->out->imbalanced[s->step / s->job.steps]++;
    if (s->job.checkpoint_steps && (s->step + 1) % s->job.checkpoint_steps == 0) {
        heap_push(&s->heap, last, s->checkpoint);
        return 0;
    }
    release(s, last);
    return 1;
}

static void pass_barriers(struct monarch_sim *s) {
    while (s->arrived == s->ranks && close_step(s))
        for (uint32_t i = 0; i < end_of_ranks(s); i = next_rank(s, i))
            s->arrived += (uint32_t)use(s, i);
}

void sim_advance(struct monarch_sim *s, uint32_t rank) {
    if (!use(s, rank))
        return;
    s->arrived++;
    pass_barriers(s);
}

void sim_begin_checkpoint(struct monarch_sim *s, double now) {
    s->writing = s->job.nodes;
    s->written = now;
    for (uint32_t n = 0; n < s->job.nodes; n++)
        pfs_ask(&s->pfs, now, 0, n, s->checkpoint + n, s->job.checkpoint_bytes * s->job.ranks[n]);
}

void sim_checkpoint_written(struct monarch_sim *s, double end) {
    s->written = end > s->written ? end : s->written;
    if (--s->writing)
        return;
    release(s, s->written);
    for (uint32_t i = 0; i < end_of_ranks(s); i = next_rank(s, i))
        s->arrived += (uint32_t)use(s, i);
    pass_barriers(s);
}

void sim_start_ranks(struct monarch_sim *s, double now) {
    s->is_started = 1;
    s->out->first_step = s->step_end = now;
    for (uint32_t i = 0; i < end_of_ranks(s); i = next_rank(s, i))
        s->rank[i].clock = now;
    for (uint32_t i = 0; i < s->job.nodes * s->threads; i++)
        if (i % s->threads < threads_of(s, i / s->threads))
            heap_push(&s->heap, now, i);
}
