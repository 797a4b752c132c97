/* Fetches samples into the staging buffer, in the order in which they are used (NoPFS, section 5.1,
 * Rule 1). Without a buffer, fetches each sample when it is needed. */
#include "simulator/state.h"

#define NOBODY UINT32_MAX

static int shares_threads(const struct monarch_sim *s) {
    return s->given && s->known[0].told.threads;
}

enum staging_state { FETCHES, WAITS_FOR_USE, WAITS_UNTIL, IS_OVER, NEEDS_EPOCH };

/* Returns the state of a thread that needs `epoch`, which the caller has not given yet. The new
 * epoch will replace the oldest known epoch. NEEDS_EPOCH: fewer than EPOCHS_KNOWN epochs are known,
 * or the oldest has ended. WAITS_UNTIL: the oldest epoch ends at *until. WAITS_FOR_USE: it is not
 * known yet when the oldest epoch ends. */
static enum staging_state next_epoch(const struct monarch_sim *s, uint64_t epoch, double now,
                                     double *until) {
    if (epoch < EPOCHS_KNOWN)
        return NEEDS_EPOCH;
    uint64_t old = epoch - EPOCHS_KNOWN;
    if (s->step < (old + 1) * s->job.steps)
        return WAITS_FOR_USE;
    *until = s->out->epoch_end[old];
    return *until > now ? WAITS_UNTIL : NEEDS_EPOCH;
}

/* Returns FETCHES if the rank's next sample can be fetched at `now`. Otherwise returns what the
 * thread waits for. With WAITS_UNTIL, the thread should check again at *until. */
static enum staging_state staging_state_of(struct monarch_sim *s, uint32_t rank, double now,
                                           double *until) {
    struct rank *r = &s->rank[rank];
    uint64_t epoch = r->fetched / per_epoch(s);
    if (epoch >= s->job.epochs)
        return IS_OVER;
    if (epoch >= s->given)
        return next_epoch(s, epoch, now, until);
    if (!s->job.stages) {
        if (r->used < r->fetched || r->is_at_barrier)
            return WAITS_FOR_USE;
        *until = r->clock;
        return r->clock > now ? WAITS_UNTIL : FETCHES;
    }
    uint32_t node = rank / s->job.most_ranks;
    double most = s->job.staging[node] / s->job.ranks[node];
    double bytes = size_at(s, rank, r->fetched);
    while (r->dropped < r->fetched && r->staged + bytes > most) {
        if (r->dropped >= r->used)
            return WAITS_FOR_USE;
        *until = known_of(s, r->dropped)->at[place_of(s, rank, r->dropped)];
        if (*until > now)
            return WAITS_UNTIL;
        sim_drop(s, rank);
    }
    return FETCHES;
}

/* Returns a quotient; rank_for gives a thread to the rank with the smallest one. Dividend: the
 * number of threads that the rank would then have. Divisor: the number of threads that are planned
 * for the rank's next sample. */
static double part_with_one_more(struct monarch_sim *s, uint32_t rank) {
    uint64_t access = s->rank[rank].fetched;
    const int32_t *threads = known_of(s, access)->told.threads;
    size_t step = access % per_epoch(s) / s->job.batch, node = rank / s->job.most_ranks;
    return (s->rank[rank].threads + 1.0) /
           threads[(node * s->job.steps + step) * s->job.most_ranks + rank % s->job.most_ranks];
}

/* Returns the rank for which the thread fetches next. If the ranks of a node share no threads, this
 * is the thread's own rank. Otherwise, considers the ranks whose next sample can be fetched at
 * `now`. Returns the one with the smallest part_with_one_more, or NOBODY if there is none. */
static uint32_t rank_for(struct monarch_sim *s, uint32_t thread, double now,
                         enum staging_state *state, double *until) {
    uint32_t node = thread / s->threads, first = node * s->job.most_ranks;
    uint32_t ranks = s->job.ranks[node];
    uint32_t best = NOBODY;
    if (!shares_threads(s)) {
        uint32_t own = first + thread % s->threads % ranks;
        *state = staging_state_of(s, own, now, until);
        return own;
    }
    double least = 0;
    *state = IS_OVER;
    for (uint32_t i = first; i < first + ranks; i++) {
        double when = now;
        enum staging_state other = staging_state_of(s, i, now, &when);
        if (other == FETCHES) {
            double part = part_with_one_more(s, i);
            if (best == NOBODY || part < least) {
                best = i;
                least = part;
            }
        }
        if (other == NEEDS_EPOCH)
            *until = now;
        else if (other == WAITS_UNTIL && *state != NEEDS_EPOCH &&
                 (*state != WAITS_UNTIL || when < *until))
            *until = when;
        if (*state == IS_OVER || other == NEEDS_EPOCH ||
            (other == WAITS_UNTIL && *state != NEEDS_EPOCH))
            *state = other;
    }
    if (best != NOBODY)
        *state = FETCHES;
    return best;
}

static struct route told_route(const struct known *k, size_t place, uint32_t node) {
    int32_t holder = k->told.holder[place];
    struct route w = {0, 0, MONARCH_SIM_PFS, 0, 0, -1};
    if (holder >= 0) {
        w.from = (uint32_t)holder == node ? MONARCH_SIM_LOCAL : MONARCH_SIM_REMOTE;
        w.holder = (uint32_t)holder;
        w.cls = (uint32_t)k->told.cls[place];
    }
    return w;
}

static void count(struct monarch_sim *s, uint32_t node, uint64_t access, const struct route *w,
                  int32_t file) {
    uint32_t epoch = (uint32_t)(access / per_epoch(s));
    double bytes = size_of(s, file);
    s->out->bytes[epoch * MONARCH_SIM_FROMS + w->from] += bytes;
    s->out->node_bytes[node * MONARCH_SIM_FROMS + w->from] += bytes;
    uint32_t *last = &s->reused[(size_t)file * EPOCHS_KNOWN + epoch % EPOCHS_KNOWN];
    int is_first = *last != epoch + 1;
    *last = epoch + 1;
    if (!is_first || w->from == MONARCH_SIM_PFS || w->from == MONARCH_SIM_STAGING ||
        w->epoch >= (int32_t)epoch)
        return;
    s->out->reused[epoch] += bytes;
}

/* Preprocesses a sample that has arrived at the node, and writes it into the buffer at the same
 * time. A thread writes at the buffer's write rate divided by the number of staging threads (NoPFS,
 * section 4). */
static void staged(struct monarch_sim *s, uint32_t thread, double now) {
    struct staging_thread *t = &s->staging[thread];
    uint32_t node = thread / s->threads;
    double bytes = size_at(s, t->rank, t->access), *at;
    /* A rank that loads its own samples does so at the rate of one staging thread. */
    double rate = s->job.write_rate[(size_t)node * s->job.classes] / s->job.threads[0];
    double prepare = bytes / s->job.preprocess[node], write = bytes / rate;
    double end = s->job.is_free ? now : now + (write > prepare ? write : prepare);
    at = &known_of(s, t->access)->at[place_of(s, t->rank, t->access)];
    *at = end;
    if (s->job.stages) {
        heap_push(&s->heap, end, thread);
    } else {
        t->is = WAITS; /* the thread waits until the rank has used the sample */
        t->since = end;
        s->rank[t->rank].threads--;
    }
    if (t->access == s->rank[t->rank].used)
        sim_advance(s, t->rank);
}

/* Makes a copy of the sample that has arrived at the node, if such a copy is planned. */
static void keep(struct monarch_sim *s, uint32_t thread, double end) {
    struct staging_thread *t = &s->staging[thread];
    const struct monarch_sim_epoch *told = &known_of(s, t->access)->told;
    size_t place = place_of(s, t->rank, t->access);
    uint32_t node = thread / s->threads;
    int32_t file = told->order[place];
    if (!told->holder)
        sim_keep(s, end, node, file, (int32_t)(t->access / per_epoch(s)));
    else if (told->into[place])
        for (int cls = told->into[place]; cls <= told->down[place]; cls++)
            machine_write(&s->machine, s->now, sim_reader(s, node, file), (uint32_t)cls,
                          size_of(s, file));
}

static void fetch(struct monarch_sim *s, uint32_t thread, double now) {
    struct staging_thread *t = &s->staging[thread];
    struct known *k = known_of(s, t->access);
    size_t place = place_of(s, t->rank, t->access);
    uint32_t node = thread / s->threads;
    int32_t file = k->told.order[place];
    double bytes = size_of(s, file);
    if (file < 0) {
        staged(s, thread, now);
        return;
    }
    struct route w = k->told.holder
                         ? told_route(k, place, node)
                         : sim_best_route(s, now, node, file, number_of(s, t->rank, t->access));
    if (s->job.is_free) {
        w.from = MONARCH_SIM_STAGING;
        staged(s, thread, now);
    } else if (w.from == MONARCH_SIM_PFS) {
        double more = k->told.redundant ? (double)k->told.redundant[place] : 0;
        w.from = sim_read(s, now, t->access, thread, bytes + more);
        w.epoch = (int32_t)(t->access / per_epoch(s));
    } else {
        double end = sim_take_route(s, now, node, &w, thread, bytes);
        if (end >= 0 && (w.from == MONARCH_SIM_REMOTE || k->told.holder))
            keep(s, thread, end);
        if (end >= 0)
            staged(s, thread, end);
    }
    count(s, node, t->access, &w, file);
}

void sim_staged(struct monarch_sim *s, uint32_t thread, double now) {
    keep(s, thread, now);
    staged(s, thread, now);
}

int sim_staging_thread(struct monarch_sim *s, uint32_t thread, double now) {
    struct staging_thread *t = &s->staging[thread];
    enum staging_state state;
    double until = now;
    if (t->is == WORKS)
        s->rank[t->rank].threads--;
    t->is = STARTS;
    uint32_t rank = rank_for(s, thread, now, &state, &until);
    if (state == NEEDS_EPOCH || state == WAITS_UNTIL) {
        t->is = SLEEPS;
        t->since = until > now ? until : now;
        heap_push(&s->heap, t->since, thread);
        return state == WAITS_UNTIL;
    }
    if (state == WAITS_FOR_USE) {
        t->is = WAITS;
        t->since = now;
    }
    if (state == FETCHES) {
        t->is = WORKS;
        t->rank = rank;
        t->access = s->rank[rank].fetched++;
        s->rank[rank].threads++;
        s->rank[rank].staged += size_at(s, rank, t->access);
        fetch(s, thread, now);
    }
    return 1;
}

void sim_wake(struct monarch_sim *s, uint32_t rank, double now) {
    uint32_t node = rank / s->job.most_ranks, ranks = s->job.ranks[node];
    uint32_t first = node * s->threads, local = rank % s->job.most_ranks;
    for (uint32_t i = first; i < first + threads_of(s, node); i++) {
        struct staging_thread *t = &s->staging[i];
        if (!shares_threads(s) && (i - first) % ranks != local)
            continue;
        if (t->is == WAITS) {
            t->is = STARTS;
            heap_push(&s->heap, now > t->since ? now : t->since, i);
        } else if (t->is == SLEEPS && shares_threads(s) && now < t->since) {
            /* One of the ranks that share this thread now has room, so the thread wakes and checks
             * all of them again. A thread with only one rank need not wake earlier: it sleeps until
             * its rank has room. */
            heap_drop(&s->heap, i);
            t->since = now > s->now ? now : s->now;
            heap_push(&s->heap, t->since, i);
        }
    }
}
