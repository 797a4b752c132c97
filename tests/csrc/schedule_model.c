/* Compares the scheduler of the copying threads with a plain model, step by step. There is only one
 * real thread, which makes the steps of all copying threads. The model has no queues, hash tables
 * or counters. In each step, it looks at all orders, fills, demands and threads.
 *
 *   schedule_model SEED TRIALS */
#include <stdlib.h>

#include "clients/demands.h"
#include "engine/entries.h"
#include "engine/orders.h"
#include "engine/schedule.h"
#include "stress.h"

#define ENTRIES 24
/* The entries share four of the hash buckets. */
#define ENTRY(n) ((n) % 4 + (n) / 4 * (uint64_t)MONARCH_BUCKETS)
#define PEERS 5
#define OF_SOURCE 4
#define OF_PEERS 14
#define WORKERS (OF_SOURCE + OF_PEERS)
#define JOBS 40
#define STEPS 500
/* Number of fills that can run at once. Fills from peers leave MONARCH_SLOTS_OF_SOURCE of the slots
 * to fills from the source. */
#define FREE_SLOTS (MONARCH_SLOTS_OF_SOURCE + 3)
#define FIRST_SLOT 2 /* the demands are in the slots [FIRST_SLOT, FIRST_SLOT + READERS) */
#define READERS 6

enum what { NOTHING, DEMAND, URGENT, AHEAD, BLOCK, ORDER, PAGE_IN };

/* An order, from its arrival until its end. */
struct known {
    struct job *job;
    struct fill *fill; /* the fill that the order has begun; NULL for none */
    int is_begun, in_use;
    uint64_t arrived;
    uint64_t turn; /* when the fill began, or when a unit of it was last filled ahead */
    uint64_t next; /* 1 + the unit that was last demanded or filled ahead */
    uint64_t done, block;
};
struct held {
    struct known *known; /* the order on which the thread works; NULL: none */
    struct work work;
    int is_unasked;
};

static uint64_t seed, clock_of_model;
static int has_ranks;
static int expected_in_use; /* 1: the expected block or order must belong to a file in use */
static unsigned next_reader;
static struct pool *pool;
static struct known knowns[JOBS];
static struct held held[WORKERS];
static uint64_t happened[PAGE_IN + 1];

static uint64_t draw(uint64_t n) { return below(&seed, n); }

static int peer_of(const struct known *k) { return k->job->peer[0]; }
static enum monarch_origin origin_of(const struct known *k) {
    return peer_of(k) < 0 ? MONARCH_FROM_SOURCE : MONARCH_FROM_PEER;
}

/* --- the model -------------------------------------------------------------------------------- */

static int count_at(int peer) {
    int n = 0;
    for (int w = OF_SOURCE; w < WORKERS; w++)
        n += held[w].known && (peer < 0 || peer_of(held[w].known) == peer);
    return n;
}

static int count_unasked(enum monarch_origin origin, int peer) {
    int n = 0;
    for (int w = 0; w < WORKERS; w++)
        n += held[w].known && held[w].is_unasked && origin_of(held[w].known) == origin &&
             (peer < 0 || peer_of(held[w].known) == peer);
    return n;
}

/* Returns whether one more thread may ask the order's peer. The number of threads that ask this
 * peer must be less than twice the number of free threads. */
static int may_ask(const struct known *k) {
    return peer_of(k) < 0 || count_at(peer_of(k)) < 2 * (OF_PEERS - count_at(-1));
}

/* Like may_ask, for work that a reader waits for. The limit of may_ask does not apply if more than
 * four threads are free, or if the order's peer is `at`, the peer that the thread is already
 * asking. */
static int may_serve(const struct known *k, int at) {
    return may_ask(k) || (peer_of(k) >= 0 && peer_of(k) == at) || OF_PEERS - count_at(-1) > 4;
}

static int is_within_width(enum monarch_origin origin) {
    return count_unasked(origin, -1) < (int)pool->width[origin];
}

/* Like may_ask, for work that no reader waits for. The width is the number of threads that may do
 * such work at a time, and `left` is the number of threads that may still begin such work. The
 * order's peer may be asked only if fewer than 2 * left - 1 threads are already asking it for such
 * work. */
static int may_ask_unasked(const struct known *k) {
    int left = (int)pool->width[MONARCH_FROM_PEER] - count_unasked(MONARCH_FROM_PEER, -1);
    return may_ask(k) &&
           (peer_of(k) < 0 || count_unasked(MONARCH_FROM_PEER, peer_of(k)) < 2 * left - 1);
}

static int has_slot(const struct known *k) {
    int begun = 0;
    for (int i = 0; i < JOBS; i++)
        begun += knowns[i].job && &knowns[i] != k && knowns[i].job->slot >= 0;
    return begun < FREE_SLOTS - (peer_of(k) < 0 ? 0 : MONARCH_SLOTS_OF_SOURCE);
}

static int is_open(const struct known *k) { return k->fill && k->done < k->fill->units; }

static int is_claimed(const struct known *k, uint64_t unit) {
    return k->fill->claimed[0] >> unit & 1;
}

static int is_used_up(const struct known *k) {
    uint64_t unit = 0;
    while (unit < k->fill->units && is_claimed(k, unit))
        unit++;
    return unit == k->fill->units;
}

/* Returns the order whose fill or check the demand waits for, or NULL if there is none. The order
 * either has a running fill or has not begun. */
static struct known *for_demand(uint64_t demand) {
    for (int i = 0; demand && i < JOBS; i++) {
        struct known *k = &knowns[i];
        if (k->job && k->job->result.id == monarch_demand_entry(demand) &&
            (k->fill || (!k->is_begun && (k->job->result.kind == MONARCH_FILL ||
                                          k->job->result.kind == MONARCH_CHECK))))
            return k;
    }
    return NULL;
}

static int serves(const struct known *k, uint64_t demand, int at) {
    uint64_t unit = monarch_demand_unit(demand);
    if (k->fill)
        return is_open(k) && unit < k->fill->units && !is_claimed(k, unit) && may_serve(k, at);
    return has_slot(k) && may_serve(k, at);
}

/* Returns the slot of the reader whose turn it is, or -1. Also records, for each fill, which unit
 * was demanded last. */
static int find_reader(enum monarch_origin origin, int at) {
    for (unsigned i = 0; i < MONARCH_DEMANDS; i++) {
        unsigned place = (next_reader + i) % MONARCH_DEMANDS;
        uint64_t demand = pool->shared.clients->demand[place];
        struct known *k = demand == pool->taken[place] ? NULL : for_demand(demand);
        if (!k || origin_of(k) != origin)
            continue;
        if (k->fill) {
            k->next = monarch_demand_unit(demand) + 1;
            k->fill->asked_ns += !k->fill->asked_ns;
        }
        if (serves(k, demand, at))
            return (int)place;
    }
    return -1;
}

static struct known *find_ahead(enum monarch_origin origin) {
    struct known *found = NULL;
    for (int i = 0; i < JOBS; i++) {
        struct known *k = &knowns[i];
        if (k->job && is_open(k) && origin_of(k) == origin && k->fill->asked_ns && !is_used_up(k) &&
            may_ask(k) && (!found || k->turn < found->turn))
            found = k;
    }
    return found;
}

static struct known *find_block(enum monarch_origin origin, int in_use) {
    struct known *found = NULL;
    for (int i = 0; i < JOBS; i++) {
        struct known *k = &knowns[i];
        if (k->job && is_open(k) && origin_of(k) == origin && !k->fill->asked_ns &&
            k->in_use == in_use && k->block < k->fill->blocks && may_ask_unasked(k) &&
            (!found || k->turn < found->turn))
            found = k;
    }
    return found;
}

static int is_in(const struct known *k, enum what queue, enum monarch_origin origin, int in_use) {
    int kind = (int)k->job->result.kind;
    enum what own = kind == MONARCH_DROP ? URGENT : kind == MONARCH_PAGE_IN ? PAGE_IN : ORDER;
    return !k->is_begun && own == queue && origin_of(k) == origin &&
           (queue != ORDER || k->in_use == in_use);
}

/* Returns the oldest order of a queue. If `peer` is not negative, returns the oldest of the orders
 * that ask this peer. */
static struct known *find_oldest(enum what queue, enum monarch_origin origin, int in_use,
                                 int peer) {
    struct known *found = NULL;
    for (int i = 0; i < JOBS; i++)
        if (knowns[i].job && is_in(&knowns[i], queue, origin, in_use) &&
            (peer < 0 || peer_of(&knowns[i]) == peer) &&
            (!found || knowns[i].arrived < found->arrived))
            found = &knowns[i];
    return found;
}

/* Returns whether the order may begin now. The order must be the oldest one in its queue that asks
 * the same peer. If it asks no peer, it must be the oldest one in its queue that reads from the
 * source. */
static int may_begin(const struct known *k, int in_use) {
    if (!k || (k->job->result.kind == MONARCH_FILL && !has_slot(k)))
        return 0;
    if (peer_of(k) >= 0 && !may_ask_unasked(k))
        return 0;
    return k == find_oldest(ORDER, origin_of(k), in_use, peer_of(k));
}

static int has_order(enum monarch_origin origin, int in_use) {
    if (origin == MONARCH_FROM_SOURCE)
        return may_begin(find_oldest(ORDER, origin, in_use, -1), in_use);
    int any = 0;
    for (int peer = 0; peer < PEERS; peer++)
        any |= may_begin(find_oldest(ORDER, origin, in_use, peer), in_use);
    return any;
}

static enum what expect(int w, uint32_t roles, int reader) {
    enum monarch_origin origin = pool->worker[w].origin;
    if (reader >= 0)
        return DEMAND;
    if (roles == MONARCH_DOES_DEMANDS)
        return NOTHING;
    if (find_oldest(URGENT, origin, 0, -1))
        return URGENT;
    for (int in_use = 1; in_use >= 0; in_use--) {
        expected_in_use = in_use;
        if (in_use && (origin == MONARCH_FROM_PEER || is_within_width(origin)) &&
            find_ahead(origin))
            return AHEAD;
        if (is_within_width(origin) && find_block(origin, in_use))
            return BLOCK;
        if (is_within_width(origin) && has_order(origin, in_use))
            return ORDER;
        if (in_use && roles & MONARCH_READS_AHEAD && find_oldest(PAGE_IN, origin, 0, -1))
            return PAGE_IN;
    }
    return NOTHING;
}

/* --- what the scheduler did ------------------------------------------------------------------- */

static struct known *known_of(const struct work *w) {
    const struct job *job = w->job ? w->job : w->fill->job;
    for (int i = 0; i < JOBS; i++)
        if (knowns[i].job == job)
            return &knowns[i];
    die("the work belongs to an unknown order");
}

static uint64_t next_unit(const struct known *k) {
    uint64_t unit = k->next < k->fill->units ? k->next : 0;
    while (is_claimed(k, unit))
        unit = (unit + 1) % k->fill->units;
    return unit;
}

/* Checks that the scheduler has found the work that the model expects. what: the kind of the work.
 * unit_ahead: the expected unit, if the work is a unit ahead of a reader. */
static void check_work(int w, enum what what, int reader, const struct known *ahead,
                       uint64_t unit_ahead, const struct work *got) {
    struct known *k = known_of(got);
    enum monarch_origin origin = pool->worker[w].origin;
    CHECK(origin_of(k) == origin);
    if (what == DEMAND) {
        uint64_t demand = pool->shared.clients->demand[reader];
        if (!has_ranks) {
            CHECK(k == for_demand(demand));
            CHECK(got->job || (got->is_unit && got->unit == monarch_demand_unit(demand)));
        }
        CHECK(!got->job || (!k->is_begun && got->job->result.in_use));
    } else if (what == AHEAD) {
        CHECK(got->is_unit && k->fill);
        CHECK(has_ranks || (k == ahead && got->unit == unit_ahead));
    } else if (what == BLOCK) {
        CHECK(!got->job && !got->is_unit && got->block == k->block && k->in_use == expected_in_use);
        CHECK(has_ranks || k == find_block(origin, k->in_use));
    } else {
        CHECK(got->job == k->job && !k->is_begun);
        if (what == ORDER)
            CHECK(may_begin(k, expected_in_use));
        else
            CHECK(k == find_oldest(what, origin, 0, -1));
    }
}

/* --- orders and fills ------------------------------------------------------------------------- */

static void arrive(void) {
    static const int kinds[] = {MONARCH_FILL,  MONARCH_FILL, MONARCH_FILL,   MONARCH_FILL,
                                MONARCH_CHECK, MONARCH_DROP, MONARCH_PAGE_IN};
    struct known *k = knowns;
    while (k < knowns + JOBS && k->job)
        k++;
    uint64_t id = ENTRY(draw(ENTRIES));
    for (int i = 0; i < JOBS; i++)
        if (k == knowns + JOBS || (knowns[i].job && knowns[i].job->result.id == id))
            return;
    *k = (struct known){
        .job = calloc(1, sizeof *k->job + 1), .in_use = (int)draw(2), .arrived = ++clock_of_model};
    CHECK(k->job);
    k->job->slot = k->job->handed = -1;
    k->job->result.id = id;
    k->job->result.kind = (uint32_t)kinds[draw(sizeof kinds / sizeof *kinds)];
    /* Of the orders that ask a peer, more than half ask peer 0. */
    int is_from_peer = k->job->result.kind == MONARCH_FILL && draw(2);
    k->job->peer[0] = !is_from_peer ? -1 : draw(2) ? 0 : (int)draw(PEERS);
    struct queue *to = k->in_use ? pool->in_use : pool->normal;
    if (k->job->result.kind == MONARCH_DROP)
        to = &pool->urgent;
    else if (k->job->result.kind == MONARCH_PAGE_IN)
        to = &pool->to_page_in;
    monarch_enqueue(pool, to, k->in_use, k->job);
}

static void begin(struct known *k) {
    k->is_begun = 1;
    if (k->job->result.kind != MONARCH_FILL)
        return;
    CHECK(k->job->slot >= 0);
    struct fill *f = calloc(1, sizeof *f + sizeof *f->claimed);
    CHECK(f);
    f->job = k->job;
    f->claimed = (uint64_t *)(f + 1);
    f->map = &pool->shared.fills->fill[k->job->slot];
    memset(f->map->done, 0, sizeof f->map->done);
    f->blocks = 1 + draw(4);
    f->units = f->blocks * (f->blocks == 1 ? 1 : 4) - (f->blocks > 1 ? draw(4) : 0);
    f->blocks_left = f->blocks;
    f->users = 1;
    monarch_add_fill(pool, f);
    k->fill = f;
    k->in_use = (int)k->job->result.in_use;
    k->turn = ++clock_of_model;
}

static void finish(struct known *k) {
    monarch_count(pool, k->job, -1);
    if (k->fill)
        monarch_remove_fill(pool, k->fill);
    monarch_answer(pool->shared.clients, k->job->result.id, 0, MONARCH_FILL_UNITS);
    monarch_free_slot(pool, k->job);
    free(k->fill);
    free(k->job);
    *k = (struct known){0};
}

static void mark_done(struct known *k, uint64_t unit) {
    k->fill->map->done[0] |= 1ULL << unit;
    k->fill->blocks_left -= ++k->done == k->fill->units ? k->fill->blocks : 0;
    monarch_answer(pool->shared.clients, k->job->result.id, unit, 1);
}

/* Ends a piece of work as work.c does. */
static void end_work(struct known *k, const struct work *w) {
    if (w->job && !k->fill) {
        finish(k);
        return;
    }
    if (w->is_unit)
        mark_done(k, w->unit);
    else if (!w->job)
        for (uint64_t unit = w->block * 4; unit < w->block * 4 + 4 && unit < k->fill->units; unit++)
            if (!is_claimed(k, unit)) {
                monarch_claim(k->fill, unit);
                mark_done(k, unit);
            }
    if (--k->fill->users == 0 && !is_open(k))
        finish(k);
}

/* --- steps ------------------------------------------------------------------------------------ */

static void ask(void) {
    uint64_t *at = &pool->shared.clients->demand[FIRST_SLOT + draw(READERS)];
    if (!*at)
        *at = monarch_demand(ENTRY(draw(ENTRIES)), draw(17), (uint32_t)++clock_of_model * 2,
                             has_ranks ? (unsigned)draw(4) : 0);
}

/* Refuses the demands for files that have no order, because the engine orders no fill here. */
static void refuse(struct worker *me) {
    for (unsigned i = 0; i < me->unordered_count; i++)
        pool->grant.refused[me->unordered[i].place] = me->unordered[i].demand;
    me->unordered_count = 0;
}

static int leaves_nobody(int w) {
    for (int other = w % 2; other < OF_SOURCE; other += 2)
        if (other != w && !held[other].known)
            return 0;
    return w < OF_SOURCE;
}

/* Checks that no demand is left whose unit is already filled or does not exist. A thread that finds
 * no work has looked at all demands of its origin, and must have answered such demands. */
static void check_answers(enum monarch_origin origin) {
    for (int i = 0; i < MONARCH_DEMANDS; i++) {
        uint64_t demand = pool->shared.clients->demand[i], unit = monarch_demand_unit(demand);
        const struct known *k = for_demand(demand);
        if (k && k->fill && origin_of(k) == origin)
            CHECK(unit < k->fill->units && !(k->fill->map->done[0] >> unit & 1));
    }
}

/* Makes thread `w` look for work. If the thread already has work, it either ends this work first,
 * or only interrupts it to look for a demand. */
static void look(int w) {
    struct worker *me = &pool->worker[w];
    struct work got = {0};
    uint32_t roles = monarch_roles_of(me);
    /* Of the threads for the sources, only those with odd numbers read ahead. */
    CHECK(roles == (w < OF_SOURCE && w % 2 ? MONARCH_DOES_ALL | MONARCH_READS_AHEAD
                                           : (uint32_t)MONARCH_DOES_ALL));
    int was_idle = !held[w].known, interrupts = !was_idle && draw(3) == 0;
    if (interrupts)
        roles = MONARCH_DOES_DEMANDS;
    else if (!was_idle)
        end_work(held[w].known, &held[w].work);
    /* The model sets asked_ns of the fills that readers demand. This is undone below, so that the
     * scheduler has to find these fills itself. */
    int was_asked[JOBS], at = interrupts ? peer_of(held[w].known) : -1;
    if (!interrupts)
        held[w] = (struct held){0};
    uint32_t who = was_idle ? monarch_whom_it_needs(pool, me->origin) : 0;
    for (int i = 0; i < JOBS; i++)
        was_asked[i] = knowns[i].fill && knowns[i].fill->asked_ns;
    int reader = find_reader(me->origin, at);
    enum what what = expect(w, roles, reader);
    struct known *ahead = what == AHEAD ? find_ahead(me->origin) : NULL;
    uint64_t unit_ahead = ahead ? next_unit(ahead) : 0;
    for (int i = 0; i < JOBS; i++)
        if (knowns[i].fill && !was_asked[i])
            knowns[i].fill->asked_ns = 0;
    int found = monarch_find_work(pool, me, roles, &got);
    if (found != (what != NOTHING))
        die("thread %d: found work: %d; kind that the model expects: %d", w, found, what);
    happened[what]++;
    /* `who` is the set of roles for which the scheduler wakes threads to do the waiting work. An
     * idle thread that has found work must be one of the threads to wake. For a PAGE_IN, this means
     * that `who` contains at least one of the thread's roles. For other work, it means that `who`
     * contains MONARCH_DOES_ALL. */
    if (was_idle && found)
        CHECK(who & (what == PAGE_IN ? roles : MONARCH_DOES_ALL));
    if (!found) {
        while (me->unordered_count) {
            refuse(me);
            CHECK(!monarch_find_work(pool, me, roles, &got));
        }
        check_answers(me->origin);
        if (roles != MONARCH_DOES_DEMANDS)
            CHECK(!(monarch_whom_it_needs(pool, me->origin) & roles));
        return;
    }
    refuse(me);
    struct known *k = known_of(&got);
    check_work(w, what, reader, ahead, unit_ahead, &got);
    if (what == DEMAND)
        next_reader = pool->next_demand;
    CHECK(has_ranks || what != DEMAND || next_reader == (unsigned)reader + 1);
    if (what == AHEAD) {
        k->turn = ++clock_of_model;
        k->next = got.unit + 1;
    }
    if (what == BLOCK)
        k->block++;
    if (got.job)
        begin(k);
    if (interrupts) {
        end_work(k, &got);
        return;
    }
    CHECK(got.leaves_nobody == leaves_nobody(w));
    held[w] = (struct held){k, got,
                            what == BLOCK || what == ORDER ||
                                (what == AHEAD && me->origin == MONARCH_FROM_SOURCE)};
}

static void check_lengths(void) {
    uint64_t waiting = 0, reads = 0, length = pool->urgent.length + pool->to_page_in.length;
    for (int i = 0; i < JOBS; i++) {
        waiting += knowns[i].job && !knowns[i].is_begun;
        reads +=
            knowns[i].job && !knowns[i].is_begun && knowns[i].job->result.kind == MONARCH_PAGE_IN;
    }
    for (int origin = 0; origin < MONARCH_ORIGINS; origin++)
        length += pool->in_use[origin].length + pool->normal[origin].length;
    for (int peer = 0; peer < PEERS; peer++)
        length += pool->late[0].of[peer].length + pool->late[1].of[peer].length;
    CHECK(length == waiting && pool->to_page_in.length == reads);
}

static void check_counts(void) {
    uint32_t asked[PEERS] = {0}, fills = 0;
    for (int i = 0; i < JOBS; i++)
        if (knowns[i].job && peer_of(&knowns[i]) >= 0)
            asked[peer_of(&knowns[i])]++;
        else
            fills += knowns[i].job && knowns[i].job->result.kind == MONARCH_FILL;
    for (int in_use = 0; in_use < 2; in_use++) {
        unsigned n = pool->late[in_use].peers, named[PEERS] = {0};
        while (n--)
            CHECK(!named[pool->late[in_use].peer[n]]++);
    }
    CHECK(memcmp(asked, pool->asked, sizeof asked) == 0 && fills == pool->source_fills);
}

static int any_is_left(void) {
    int i = 0;
    while (i < JOBS && !knowns[i].job)
        i++;
    return i < JOBS;
}

static void make_pool(void) {
    pool = calloc(1, sizeof *pool + WORKERS * sizeof *pool->worker);
    CHECK(pool);
    pool->shared.clients = calloc(1, sizeof *pool->shared.clients);
    pool->shared.fills = calloc(1, sizeof *pool->shared.fills);
    pool->shared.writer = (struct monarch_writer *)pool; /* not NULL; never dereferenced */
    CHECK(pool->shared.clients && pool->shared.fills);
    pthread_mutex_init(&pool->lock, NULL);
    pool->most_threads = pool->threads = OF_SOURCE;
    pool->peer_threads = OF_PEERS;
    pool->resting[0] = pool->resting[1] = OF_SOURCE / 2;
    for (int i = 0; i < FREE_SLOTS; i++)
        pool->slot[pool->free_slots++] = i;
    for (int origin = 0; origin < MONARCH_ORIGINS; origin++) {
        pool->width[origin] = 1 + (uint32_t)draw(origin == MONARCH_FROM_PEER ? 12 : 4);
        pool->fair[origin].share = pool->share;
    }
    for (unsigned rank = 1; rank < 4; rank++)
        pool->share[rank] = has_ranks ? (uint32_t)draw(4) : 0;
    for (int w = 0; w < WORKERS; w++)
        pool->worker[w] =
            (struct worker){.pool = pool,
                            .peer = -1,
                            .number = (uint32_t)(w < OF_SOURCE ? w : w - OF_SOURCE),
                            .origin = w < OF_SOURCE ? MONARCH_FROM_SOURCE : MONARCH_FROM_PEER};
    memset(held, 0, sizeof held);
    memset(knowns, 0, sizeof knowns);
    next_reader = 0;
}

static void free_pool(void) {
    free(pool->shared.clients);
    free(pool->shared.fills);
    free(pool);
}

static void try(uint64_t number) {
    has_ranks = number % 3 == 2;
    make_pool();
    for (int step = 0; step < STEPS; step++) {
        uint64_t act = draw(step < STEPS / 2 ? 8 : 16);
        if (act < 3)
            arrive();
        else if (act < 5)
            ask();
        else
            look((int)draw(WORKERS));
        check_counts();
        check_lengths();
    }
    for (int round = 0; round < 10000 && any_is_left(); round++)
        for (int w = 0; w < WORKERS; w++)
            look(w);
    CHECK(!any_is_left());
    for (int w = 0; w < WORKERS; w++)
        look(w);
    for (int origin = 0; origin < MONARCH_ORIGINS; origin++)
        CHECK(!pool->pending[0][origin] && !pool->pending[1][origin] && !pool->unasked[origin]);
    CHECK(pool->free_slots == FREE_SLOTS && pool->away == 0);
    free_pool();
}

/* Units ahead of readers are filled in proportion to the shares of the readers' ranks. */
static void try_shares(void) {
    enum { UNITS = 64, SHARE = 3 };
    struct job jobs[2] = {{.peer = {-1}, .result = {.id = 0}}, {.peer = {-1}, .result = {.id = 1}}};
    uint64_t claimed[2] = {0}, filled[2] = {0};
    struct fill fills[2] = {{0}};
    make_pool();
    pool->width[MONARCH_FROM_SOURCE] = UNITS;
    for (int i = 0; i < 2; i++) {
        fills[i] = (struct fill){.job = &jobs[i],
                                 .asked_ns = 1,
                                 .asked_by = 1 + (unsigned)i,
                                 .units = UNITS,
                                 .blocks = 1,
                                 .blocks_left = 1,
                                 .claimed = &claimed[i]};
        pool->share[1 + i] = i ? 1 : SHARE;
        monarch_add_fill(pool, &fills[i]);
    }
    for (int n = 0; n < UNITS; n++) {
        struct work w = {0};
        CHECK(monarch_find_work(pool, &pool->worker[0], MONARCH_DOES_ALL, &w) && w.is_unit);
        CHECK(w.unit == filled[w.fill - fills]++);
        CHECK(llabs((long long)filled[0] - SHARE * (long long)filled[1]) <= 2 * SHARE);
    }
    free_pool();
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    seed = strtoull(argv[1], NULL, 10);
    for (uint64_t number = 0; number < strtoull(argv[2], NULL, 10); number++)
        try(number);
    try_shares();
    for (int what = NOTHING; what <= PAGE_IN; what++)
        printf("%llu\n", (unsigned long long)happened[what]);
    return 0;
}
