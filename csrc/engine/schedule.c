/* Chooses the next work of each copying thread by priority, and the threads that are woken for new
 * work. The priorities, from the highest: units for which a reader waits; removals of copies;
 * orders for files in use; PAGE_INs; all other orders. */
#include "engine/schedule.h"

#include "clients/demands.h"
#include "copy/fill.h"
#include "engine/entries.h"
#include "shared/claims.h"
#include "shared/clock.h"
#include "shared/doorbell.h"

/* The value of a fill's `next_unit` once all its units are claimed. */
#define DONE UINT64_MAX
/* Only a limited number of threads may ask one peer (can_ask). For work that a reader waits for,
 * this limit applies only while at most this many threads for peers are free. So the last free
 * threads are left to other peers. */
#define KEPT_FREE 4
/* Maximum number of orders that one search skips. The search must be short, because the thread
 * holds the pool's lock. */
#define MOST_PASSED 64

/* --- the next work ---------------------------------------------------------------------------- */

static void begins(struct pool *p, struct job *job, struct work *w) {
    monarch_unqueue(p, job);
    if (job->result.kind == MONARCH_FILL)
        job->slot = p->slot[--p->free_slots];
    *w = (struct work){.job = job};
}

/* Returns whether one more thread may ask the order's peer. The limit for each peer is twice the
 * number of threads that are free now (dynamic thresholds: Choudhury and Hahne, 1998). So a slow
 * peer leaves some threads to the other peers. If only one peer is busy, it gets two thirds of all
 * threads. at: the peer that the calling thread asks now, or -1. The thread may always ask this
 * peer again. */
static int can_ask(const struct pool *p, int at, const struct job *job) {
    int peer = job->peer[0];
    return peer < 0 || peer == at || p->at[peer] < 2 * (p->peer_threads - p->away);
}

/* Like can_ask, for work that a reader waits for. While more than KEPT_FREE threads are free, there
 * is no limit. */
static int can_serve(const struct pool *p, int at, const struct job *job) {
    return can_ask(p, at, job) || p->peer_threads - p->away > KEPT_FREE;
}

/* Like can_ask, but for unasked work, which no reader waits for. One slow peer must not occupy all
 * `width` threads that may do unasked work (struct pool). So there is a second limit by the same
 * rule, which counts only these threads. */
static int can_ask_unasked(const struct pool *p, const struct job *job) {
    uint32_t left = p->width[MONARCH_FROM_PEER] - p->unasked[MONARCH_FROM_PEER];
    return can_ask(p, -1, job) && (job->peer[0] < 0 || p->unasked_at[job->peer[0]] < 2 * left - 1);
}

static void go_to(struct pool *p, struct worker *me, int peer) {
    if (me->peer >= 0) {
        p->at[me->peer]--;
        p->away--;
    }
    me->peer = peer;
    if (peer >= 0) {
        p->at[peer]++;
        p->away++;
    }
}

static int has_slot(const struct pool *p, enum monarch_origin origin) {
    return p->free_slots > (origin == MONARCH_FROM_PEER ? MONARCH_SLOTS_OF_SOURCE : 0);
}

/* Returns the queued order for the entry if it can begin now and its bytes come from this origin,
 * else NULL. */
static struct job *queued(const struct pool *p, enum monarch_origin origin, uint64_t id) {
    struct job *job = has_slot(p, origin) ? monarch_order_of(p, id) : NULL;
    return job && monarch_origin_of(job) == origin ? job : NULL;
}

static int find_queued(struct pool *p, const struct worker *me, uint64_t id, struct work *w) {
    struct job *job = queued(p, me->origin, id);
    if (!job || !can_serve(p, me->peer, job))
        return 0;
    p->pending[job->result.in_use][me->origin]--;
    p->pending[job->result.in_use = 1][me->origin]++;
    begins(p, job, w);
    return 1;
}

static int find_unit(struct pool *p, const struct worker *me, struct fill *f,
                     const struct waiting *reader, struct work *w) {
    uint64_t demand = reader->demand, unit = monarch_demand_unit(demand);
    __atomic_store_n(&f->asked_ns, monarch_now_ns(), __ATOMIC_RELAXED);
    f->next_unit = unit + 1;
    f->asked_by = monarch_demand_rank(demand);
    /* Check the unit's number, because a client may write any number into its demand. A file of
     * more than MONARCH_FILL_UNITS units has no map of filled units. Its readers must wait for the
     * complete copy, so no single unit is filled for them. */
    if (unit < f->units && unit < MONARCH_FILL_UNITS && !monarch_is_claimed(f, unit) &&
        !monarch_fill_is_over(f)) {
        if (!can_serve(p, me->peer, f->job))
            return 0;
        p->taken[reader->place] = demand;
        monarch_claim(f, unit);
        f->users++;
        *w = (struct work){.fill = f, .unit = unit, .is_unit = 1};
        return 1;
    }
    p->taken[reader->place] = demand;
    /* If the unit is already filled, answer the demand here. The thread that filled the unit
     * answered the demands that it saw then, but this demand may be newer. Also answer the demand
     * if the unit's number is too large, because no thread fills such a unit. */
    if (unit >= f->units || unit >= MONARCH_FILL_UNITS ||
        __atomic_load_n(&f->map->done[unit / 64], __ATOMIC_SEQ_CST) >> (unit % 64) & 1)
        monarch_answer(p->shared.clients, f->job->result.id, unit, 1);
    return 0;
}

/* Returns whether a thread should try to order a fill for this demand, whose file has no order.
 * Returns 0 if a thread has already tried (grant.refused). */
static int may_order(const struct pool *p, unsigned place, uint64_t demand) {
    return p->shared.writer && p->grant.refused[place] != demand;
}

static int find_for(struct pool *p, struct worker *me, const struct waiting *reader,
                    struct work *w) {
    uint64_t id = monarch_demand_entry(reader->demand);
    struct fill *f = monarch_fill_of(p, id);
    if (f)
        return monarch_origin_of(f->job) == me->origin && find_unit(p, me, f, reader, w);
    if (!monarch_has_order(p, id) && me->unordered_count < MONARCH_UNORDERED &&
        may_order(p, reader->place, reader->demand))
        me->unordered[me->unordered_count++] = *reader;
    return find_queued(p, me, id, w);
}

/* Finds work for a waiting reader. Each search begins where the last successful search ended, so
 * readers are served in rotation. If the search meets a reader with a rank, the ranks' shares
 * decide which reader is served (fair_queue.h). */
static int find_demand(struct pool *p, struct worker *me, struct work *w) {
    struct fair_queue *queue = &p->fair[me->origin];
    struct line line;
    monarch_line_up(&line, queue, p->shared.clients->demand, p->taken, p->next_demand);
    for (struct waiting reader; monarch_next_waiting(&line, &reader);)
        if (find_for(p, me, &reader, w)) {
            p->next_demand = monarch_served_reader(&line, queue, &reader);
            return 1;
        }
    return 0;
}

/* Returns the first unclaimed unit after the unit that was demanded last, or else any unclaimed
 * unit. Returns DONE if all units are claimed. */
static uint64_t unit_ahead(struct fill *f) {
    uint64_t unit = f->next_unit < f->units ? f->next_unit : 0, n = 0;
    for (; n < f->units && monarch_is_claimed(f, unit); n++)
        unit = unit + 1 < f->units ? unit + 1 : 0;
    f->next_unit = n < f->units ? unit + 1 : DONE;
    return n < f->units ? unit : DONE;
}

/* Chooses a fill for find_ahead. A candidate is a fill of this origin for which a reader has
 * waited, and which has unclaimed units. Returns NULL if there is none. Sets *first to the first
 * candidate in the list. Returns *first if its reader has no rank. Otherwise, returns the candidate
 * whose reader's rank is due first. */
static struct fill *next_fill(const struct pool *p, enum monarch_origin origin,
                              struct fill **first) {
    const struct fair_queue *queue = &p->fair[origin];
    struct fill *chosen = NULL;
    uint64_t due = 0;
    for (struct fill *f = p->fills; f; f = f->next) {
        if (monarch_origin_of(f->job) != origin || !f->asked_ns || monarch_fill_is_over(f) ||
            f->next_unit == DONE || !can_ask(p, -1, f->job))
            continue;
        unsigned rank = monarch_rank_in(queue, f->asked_by);
        if (chosen && (!rank || monarch_due(queue, rank) >= due))
            continue;
        *first = chosen ? *first : f;
        chosen = f;
        due = monarch_due(queue, rank);
        if (!rank) /* the first candidate's reader has no rank, so this candidate is the result */
            break;
    }
    return chosen;
}

/* Finds a unit that no reader has asked for yet, in a file for which a reader has waited. That
 * reader will soon want the file's next units. The files for which readers have waited are
 * served in rotation, one unit at a time. */
static int find_ahead(struct pool *p, enum monarch_origin origin, struct work *w) {
    for (struct fill *first = NULL, *f; (f = next_fill(p, origin, &first));) {
        uint64_t unit = unit_ahead(f);
        if (unit == DONE)
            continue;
        monarch_claim(f, unit);
        f->users++;
        *w = (struct work){.fill = f, .unit = unit, .is_unit = 1};
        monarch_move_last(p, f, first);
        monarch_served(&p->fair[origin], monarch_rank_in(&p->fair[origin], f->asked_by));
        return 1;
    }
    return 0;
}

/* Returns whether a thread can begin the next block of this fill. Returns 0 if a reader has waited
 * for the file, because find_ahead chooses the units of such a file. */
static int has_block(const struct pool *p, enum monarch_origin origin, const struct fill *f) {
    return f->next_block < f->blocks && !f->asked_ns && !monarch_fill_is_over(f) &&
           monarch_origin_of(f->job) == origin && can_ask_unasked(p, f->job);
}

/* Finds a block to copy in a fill for which no reader has waited. Takes the first such fill in the
 * list, so that files are finished one after the other. */
static int find_block(struct pool *p, enum monarch_origin origin, int in_use, struct work *w) {
    struct fill *f = p->fills;
    while (f && ((int)f->job->result.in_use != in_use || !has_block(p, origin, f)))
        f = f->next;
    if (!f)
        return 0;
    *w = (struct work){.fill = f, .block = f->next_block++};
    f->users++;
    return 1;
}

static int can_begin(const struct pool *p, enum monarch_origin origin, const struct queue *q) {
    return q->first && (q->first->result.kind != MONARCH_FILL || has_slot(p, origin));
}

static int find_job(struct pool *p, enum monarch_origin origin, struct queue *q, struct work *w) {
    if (!can_begin(p, origin, q))
        return 0;
    begins(p, q->first, w);
    return 1;
}

static void put_aside(struct late *late, struct job *job) {
    uint16_t peer = (uint16_t)job->peer[0];
    unsigned i = 0;
    while (i < late->peers && late->peer[i] != peer)
        i++;
    if (i == late->peers)
        late->peer[late->peers++] = peer;
    monarch_take_out(job);
    monarch_push(&late->of[peer], job);
}

/* Returns the first set-aside order whose peer may be asked now, or NULL. The search is short: it
 * skips only peers that threads are asking now, and there are at most as many as threads. */
static struct job *first_late(struct pool *p, int in_use) {
    struct late *late = &p->late[in_use];
    for (unsigned i = 0; i < late->peers;) {
        struct job *job = late->of[late->peer[i]].first;
        if (job && can_ask_unasked(p, job))
            return job;
        if (job)
            i++;
        else
            late->peer[i] = late->peer[--late->peers];
    }
    return NULL;
}

static int waits_for_reader(const struct pool *p, const struct job *job, uint64_t now) {
    return job && job->result.kind == MONARCH_FILL && !job->is_kept &&
           monarch_is_being_read(p->shared.clients, job->result.id, job->entry.ino, now);
}

/* If a program is reading an order's file at the source, the order must wait. The program will hand
 * over its descriptor of the file, and the fill then need not open the file. While the first order
 * of the queue must wait, this function moves it to the end of the queue. Afterwards, returns
 * whether the order that is now the first must wait too. */
static int pass_over_read(const struct pool *p, struct queue *q) {
    uint64_t now = monarch_now_ns();
    for (int n = 0; n < MOST_PASSED && q->first != q->last && waits_for_reader(p, q->first, now);
         n++) {
        struct job *job = q->first;
        monarch_take_out(job);
        monarch_push(q, job);
    }
    return waits_for_reader(p, q->first, now);
}

/* Takes the next order from the queues for the thread to begin. If too many threads already ask the
 * peer of the first order, sets this order aside, and looks at the next one. */
static int find_order(struct pool *p, struct worker *me, int in_use, struct work *w) {
    enum monarch_origin origin = me->origin;
    struct queue *q = in_use ? &p->in_use[origin] : &p->normal[origin];
    if (origin == MONARCH_FROM_PEER && has_slot(p, origin)) { /* all orders from peers are fills */
        struct job *job = first_late(p, in_use);
        if (job) {
            begins(p, job, w);
            return 1;
        }
        while (q->first && !can_ask_unasked(p, q->first))
            put_aside(&p->late[in_use], q->first);
    }
    if (origin == MONARCH_FROM_SOURCE && pass_over_read(p, q)) {
        me->awaits_reader = 1;
        return 0;
    }
    return find_job(p, origin, q, w);
}

uint32_t monarch_roles_of(const struct worker *me) {
    int reads_ahead = me->origin == MONARCH_FROM_SOURCE && me->number % 2;
    return MONARCH_DOES_ALL | (reads_ahead ? MONARCH_READS_AHEAD : 0);
}

static int is_within_width(const struct pool *p, enum monarch_origin origin) {
    return p->unasked[origin] < p->width[origin];
}

/* Takes work that no reader waits for: a unit that a reader will soon want, a block, or an
 * order. */
static int find_unasked(struct pool *p, struct worker *me, int in_use, struct work *w) {
    enum monarch_origin origin = me->origin;
    int is_ahead = in_use && (origin == MONARCH_FROM_PEER || is_within_width(p, origin)) &&
                   find_ahead(p, origin, w);
    if (!is_ahead && (!is_within_width(p, origin) ||
                      !(find_block(p, origin, in_use, w) || find_order(p, me, in_use, w))))
        return 0;
    /* A unit from find_ahead that comes from a peer is not counted as unasked work (p->unasked). A
     * reader will soon wait for this unit, and there are enough threads for peers. */
    if (is_ahead && origin == MONARCH_FROM_PEER)
        return 1;
    me->is_unasked = 1;
    p->unasked[origin]++;
    if (origin == MONARCH_FROM_PEER)
        p->unasked_at[me->unasked_peer = (w->job ? w->job : w->fill->job)->peer[0]]++;
    return 1;
}

static int find_any(struct pool *p, struct worker *me, uint32_t roles, struct work *w) {
    enum monarch_origin origin = me->origin;
    return find_demand(p, me, w) ||
           (origin == MONARCH_FROM_SOURCE && find_job(p, origin, &p->urgent, w)) ||
           find_unasked(p, me, 1, w) ||
           (roles & MONARCH_READS_AHEAD && find_job(p, origin, &p->to_page_in, w)) ||
           find_unasked(p, me, 0, w);
}

/* Call this when the thread has finished its work. Counts the thread as idle (`resting`), and no
 * longer as asking a peer. */
static void rest(struct pool *p, struct worker *me) {
    go_to(p, me, -1);
    p->unasked[me->origin] -= (uint32_t)me->is_unasked;
    if (me->is_unasked && me->origin == MONARCH_FROM_PEER)
        p->unasked_at[me->unasked_peer]--;
    me->is_unasked = 0;
    p->resting[me->number % 2] += me->is_at_work;
    me->is_at_work = 0;
}

int monarch_find_work(struct pool *p, struct worker *me, uint32_t roles, struct work *w) {
    if (roles == MONARCH_DOES_DEMANDS)
        return find_demand(p, me, w);
    rest(p, me);
    me->awaits_reader = 0;
    if (!find_any(p, me, roles, w))
        return 0;
    go_to(p, me, (w->job ? w->job : w->fill->job)->peer[0]);
    me->is_at_work = me->origin == MONARCH_FROM_SOURCE;
    p->resting[me->number % 2] -= me->is_at_work;
    w->leaves_nobody = me->is_at_work && p->resting[me->number % 2] == 0;
    return 1;
}

/* --- which threads are woken ------------------------------------------------------------------ */

/* A thread is woken only for work that it can do. No work waits while a thread that could do it
 * sleeps. The rules:
 *
 *   - A thread adds work under the pool's lock. Then it rings the bell of the work's origin: it
 *     changes the bell's word, which is a futex, and wakes one sleeping thread that could do the
 *     work. Each thread reads this word before it looks for work. It sleeps only if the word has
 *     not changed since. So it cannot fall asleep and miss the new work.
 *   - A thread takes one piece of work. If more work remains, it wakes one sleeping thread that
 *     could do this work, without a change of the bell's word. The thread that added the work
 *     changes the word, and that is enough. If that thread has already changed it, each thread that
 *     is awake finds the work before it sleeps. If not, its ring will wake one more thread.
 *   - A copying thread may add work and look for work next (monarch_unlock_and_look). It changes
 *     the word too, but wakes no thread of its own origin. It takes one piece of the work itself,
 *     and the second rule applies to the rest.
 *   - The second rule has one exception. When a thread stops asking a peer, orders that were set
 *     aside because of this peer can begin. No thread has added these orders just now, so no thread
 *     rings for them. So the thread that stopped asking the peer rings the bell itself.
 *   - If a thread with all roles of its origin finds no work, it wakes no other thread, which would
 *     find none either.
 *   - A demand whose file has no order counts as work of both origins. This ends when a thread has
 *     ordered a fill of the file, or has left the file to the daemon's loop (grant.c). */

static int has_demand(const struct pool *p, enum monarch_origin origin) {
    for (unsigned i = 0; i < MONARCH_DEMANDS; i++) {
        uint64_t d = __atomic_load_n(&p->shared.clients->demand[i], __ATOMIC_ACQUIRE);
        if (!d || d == p->taken[i])
            continue;
        uint64_t id = monarch_demand_entry(d);
        const struct fill *f = monarch_fill_of(p, id);
        const struct job *job = f ? f->job : queued(p, origin, id);
        if (job ? monarch_origin_of(job) == origin && can_serve(p, -1, job)
                : !monarch_has_order(p, id) && may_order(p, i, d))
            return 1;
    }
    return 0;
}

static int has_blocks(const struct pool *p, enum monarch_origin origin) {
    const struct fill *f = p->fills;
    while (f && !has_block(p, origin, f))
        f = f->next;
    return f != NULL;
}

static int has_late(struct pool *p, enum monarch_origin origin) {
    return origin == MONARCH_FROM_PEER && has_slot(p, origin) &&
           (first_late(p, 0) || first_late(p, 1));
}

uint32_t monarch_whom_it_needs(struct pool *p, enum monarch_origin origin) {
    if (has_demand(p, origin) ||
        (origin == MONARCH_FROM_SOURCE && can_begin(p, origin, &p->urgent)))
        return MONARCH_DOES_ALL;
    uint32_t who = origin == MONARCH_FROM_SOURCE && p->to_page_in.first ? MONARCH_READS_AHEAD : 0;
    int is_within = is_within_width(p, origin);
    struct fill *first = NULL;
    if (((is_within || origin == MONARCH_FROM_PEER) && next_fill(p, origin, &first)) ||
        (is_within &&
         (can_begin(p, origin, &p->in_use[origin]) || can_begin(p, origin, &p->normal[origin]) ||
          has_blocks(p, origin) || has_late(p, origin))))
        who |= MONARCH_DOES_ALL;
    return who;
}

void monarch_ring_one(struct pool *p, enum monarch_origin origin, uint32_t who) {
    if (who)
        monarch_bell_ring(&p->shared.clients->engine[origin], 1, who);
}

/* Releases the pool's lock, and wakes one thread of each origin that has work. looks: the calling
 * thread's origin if this thread looks for work next, else MONARCH_ORIGINS. For the origin `looks`,
 * no thread is woken. */
static void unlock_and_ring(struct pool *p, enum monarch_origin looks) {
    uint32_t who[MONARCH_ORIGINS];
    for (int origin = 0; origin < MONARCH_ORIGINS; origin++)
        who[origin] = monarch_whom_it_needs(p, origin);
    pthread_mutex_unlock(&p->lock);
    for (int origin = 0; origin < MONARCH_ORIGINS; origin++)
        if (origin != (int)looks)
            monarch_ring_one(p, origin, who[origin]);
        else if (who[origin])
            monarch_bell_keep_awake(&p->shared.clients->engine[origin]);
}

void monarch_unlock_and_ring(struct pool *p) { unlock_and_ring(p, MONARCH_ORIGINS); }

void monarch_unlock_and_look(struct pool *p, const struct worker *me) {
    unlock_and_ring(p, me->origin);
}
