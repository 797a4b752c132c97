/* Chooses the next work of each copying thread by priority, and the threads that are woken for new
 * work. Units for which a reader waits have the highest priority. Then follow removals of copies,
 * orders for files in use, PAGE_INs, and all other orders. */
#include "engine/schedule.h"

#include "clients/demands.h"
#include "copy/fill.h"
#include "engine/entries.h"
#include "shared/claims.h"
#include "shared/clock.h"
#include "shared/doorbell.h"

/* The value of a fill's `next_unit` once all its units are claimed. */
#define DONE UINT64_MAX
/* Only a limited number of threads may ask one peer (can_ask). This limit does not apply to work
 * that a reader waits for, while more than this many threads for peers are free. The last free
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
 * peer leaves some threads to the other peers, and a peer that is the only busy one gets two thirds
 * of all threads. at: the peer that the thread asks now, or -1. The thread may always continue to
 * ask this peer. */
static int can_ask(const struct pool *p, int at, const struct job *job) {
    int peer = job->peer[0];
    return peer < 0 || peer == at || p->at[peer] < 2 * (p->peer_threads - p->away);
}

/* Like can_ask, for work that a reader waits for. While more than KEPT_FREE threads are free, there
 * is no limit. */
static int can_serve(const struct pool *p, int at, const struct job *job) {
    return can_ask(p, at, job) || p->peer_threads - p->away > KEPT_FREE;
}

/* Like can_ask, but for unasked work, which no reader waits for. Only `width` threads (struct pool)
 * may do unasked work at the same time, and one slow peer must not occupy all of them. So a second
 * limit, by the rule of can_ask, counts only the threads that do unasked work. */
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
    /* Check the unit's number, because a client may write any number into its demand. A file with
     * more than MONARCH_FILL_UNITS units has no map of filled units. Readers cannot read its copy
     * before the copy is complete, so no single unit is filled for them. */
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
     * answered demands only at that time, and this demand may be newer. Also answer a demand whose
     * unit number is too large, because no thread fills such a unit. */
    if (unit >= f->units || unit >= MONARCH_FILL_UNITS ||
        __atomic_load_n(&f->map->done[unit / 64], __ATOMIC_SEQ_CST) >> (unit % 64) & 1)
        monarch_answer(p->shared.clients, f->job->result.id, unit, 1);
    return 0;
}

/* Returns whether a thread should try to order a fill for this demand, whose file has no order. The
 * result is 0 if a thread has already tried (grant.refused). */
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

/* Finds work for a waiting reader. Each search begins at the slot where the last successful search
 * ended, so readers are served in rotation. When the search reaches a reader that belongs to a
 * rank, the ranks' shares decide which rank's reader is served (fair_queue.h). */
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

/* Chooses a fill for find_ahead. A candidate is a fill of this origin that has unclaimed units and
 * for which a reader has waited. Returns NULL if there is no candidate. Sets *first to the first
 * candidate in the list of fills. If the reader of *first belongs to no rank, returns *first.
 * Otherwise, returns the candidate whose reader's rank is due first. */
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

/* Finds a unit to fill before a reader asks for this unit. A reader that has waited for one unit of
 * a file will soon want the next units. Files for which readers have waited are served in rotation,
 * one unit at a time. */
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

/* Returns whether a thread can begin the next block of this fill. If a reader has waited for the
 * file, the result is 0, because find_ahead then chooses the file's units one by one. */
static int has_block(const struct pool *p, enum monarch_origin origin, const struct fill *f) {
    return f->next_block < f->blocks && !f->asked_ns && !monarch_fill_is_over(f) &&
           monarch_origin_of(f->job) == origin && can_ask_unasked(p, f->job);
}

/* Finds a block to copy in a fill for which no reader has waited. Takes the first such fill in the
 * list, so that one file is finished before the next. */
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
 * skips only peers that threads are asking now, so it skips no more peers than there are
 * threads. */
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

/* An order must wait while a program is reading its file at the source: the program will hand over
 * the file's descriptor, so the fill need not open the file again. While the first order of the
 * queue must wait, moves this order to the end of the queue. Returns whether the order that is then
 * the first must wait too. */
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

/* Takes the next order from the queues, so that the thread can begin it. If too many threads
 * already ask the peer of an order at the front of the queue, first sets this order aside. */
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
    /* A unit that find_ahead has chosen is not counted as unasked work (p->unasked) if it comes
     * from a peer: a reader will soon wait for this unit, and there are enough threads for
     * peers. */
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
 *   - Work is added under the pool's lock. Then the bell of the work's origin is rung: its word (a
 *     futex) is changed, and one sleeping thread that could do the work is woken. A thread reads
 *     this word before it looks for work, and sleeps only if the word has not changed. So a thread
 *     that looked just before the work was added does not fall asleep.
 *   - A thread takes only one piece of the work that it finds. If sleeping threads could do some of
 *     the remaining work, the thread wakes one of them, but does not change the bell's word. It is
 *     enough that the thread which added the work changes the word. If the word has already
 *     changed, all threads that are awake see the work before they sleep. If it has not changed
 *     yet, the thread that added the work will still ring, and so wake one more thread.
 *   - A copying thread that adds work and looks for work next changes the word too, but wakes no
 *     thread of its own origin (monarch_unlock_and_look). It takes one piece of the work itself,
 *     and the second rule applies to the remaining work.
 *   - The second rule has one exception. When a thread stops asking a peer, orders that were set
 *     aside because of this peer can begin, although no thread has added work. So the thread that
 *     has left the peer rings the bell itself.
 *   - If a thread has all roles of its origin and finds no work, it need not wake others, because
 *     they would find no work either.
 *   - A demand whose file has no order is treated as work of both origins. That ends when a thread
 *     has ordered a fill of the file, or has left the file to the daemon's loop (grant.c). */

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
 * thread's origin if this thread looks for work next, else MONARCH_ORIGINS. No other thread of the
 * origin `looks` is woken. */
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
