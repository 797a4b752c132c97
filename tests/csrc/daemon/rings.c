/* Tests engine/schedule.c: which threads are woken for which work. */
#include <pthread.h>

#include "shared/doorbell.h"

/* The calls of monarch_bell_ring, in their order. */
static struct {
    const struct monarch_bell *bell;
    int threads;
    uint32_t who;
} rung[4];
static int rings, was_locked;
static pthread_mutex_t *lock_of_pool;
static void ring(struct monarch_bell *b, int threads, uint32_t who) {
    rung[rings].bell = b;
    rung[rings].threads = threads;
    rung[rings++].who = who;
    if (pthread_mutex_trylock(lock_of_pool) == 0)
        pthread_mutex_unlock(lock_of_pool);
    else
        was_locked = 1;
}
#define monarch_bell_ring ring
#include "engine/schedule.c"

#include "checks.h"
#include "engine/orders.h"

static struct pool *p;
static struct monarch_engine *e;
static struct job of_source, of_peer, page_in;

/* Makes a pool with free slots and idle threads. Also makes one order of each kind, and puts none
 * into a queue. */
static void make(void) {
    e = make_engine(4 * MONARCH_CHUNK);
    p = calloc(1, sizeof *p + 4 * sizeof *p->worker);
    p->shared = *e;
    pthread_mutex_init(&p->lock, NULL);
    lock_of_pool = &p->lock;
    p->free_slots = MONARCH_SLOTS_OF_SOURCE + 1;
    p->width[0] = p->width[1] = 3;
    p->peer_threads = 4;
    for (int origin = 0; origin < MONARCH_ORIGINS; origin++)
        p->fair[origin].share = p->share;
    of_source = (struct job){.slot = -1, .handed = -1, .peer = {-1}, .result.id = 5};
    of_peer = (struct job){.slot = -1, .handed = -1, .peer = {3}, .result.id = 6};
    page_in = of_source;
    page_in.result.kind = MONARCH_PAGE_IN;
    rings = was_locked = 0;
}

static void done(void) {
    free(p);
    free_engine(e);
}

/* After a change, the pool's lock is released, and then one thread is woken for each origin that
 * has work. The lock is released first, because a woken thread needs it at once. */
TEST(one_thread_of_each_origin_is_woken) {
    for (int bits = 0; bits < 4; bits++) {
        make();
        if (bits & 1)
            monarch_push(&p->normal[MONARCH_FROM_SOURCE], &of_source);
        if (bits & 2)
            monarch_push(&p->normal[MONARCH_FROM_PEER], &of_peer);
        pthread_mutex_lock(&p->lock);
        monarch_unlock_and_ring(p);
        SAME(rings, (bits & 1) + (bits >> 1));
        CHECK(!was_locked && pthread_mutex_trylock(&p->lock) == 0);
        pthread_mutex_unlock(&p->lock);
        int i = 0;
        for (int origin = 0; origin < MONARCH_ORIGINS; origin++)
            if (bits & (origin == MONARCH_FROM_SOURCE ? 1 : 2)) {
                CHECK(rung[i].bell == &e->clients->engine[origin] && rung[i].threads == 1);
                SAME(rung[i++].who, MONARCH_DOES_ALL);
            }
        done();
    }
}

/* If a thread is about to look for work itself, it wakes no thread of its own origin. But it takes
 * only one piece of the work, so other threads of its origin that are about to sleep look for work
 * once more. */
TEST(a_thread_that_looks_wakes_only_the_other_origin) {
    for (int bits = 0; bits < 4; bits++)
        for (int own = 0; own < MONARCH_ORIGINS; own++) {
            make();
            struct worker me = {.pool = p, .origin = (enum monarch_origin)own};
            struct monarch_bell *bells = e->clients->engine;
            if (bits & 1)
                monarch_push(&p->normal[MONARCH_FROM_SOURCE], &of_source);
            if (bits & 2)
                monarch_push(&p->normal[MONARCH_FROM_PEER], &of_peer);
            pthread_mutex_lock(&p->lock);
            monarch_unlock_and_look(p, &me);
            int has[] = {bits & 1, bits >> 1};
            CHECK(MONARCH_FROM_SOURCE == 0 && MONARCH_FROM_PEER == 1);
            SAME(rings, has[!own]);
            CHECK(!rings || rung[0].bell == &bells[!own]);
            CHECK(bells[own].rings == (uint32_t)has[own] && bells[!own].rings == 0);
            CHECK(!was_locked && pthread_mutex_trylock(&p->lock) == 0);
            pthread_mutex_unlock(&p->lock);
            done();
        }
}

enum task { NONE, URGENT, PAGES, IN_USE, NORMAL, BLOCK, DEMAND, ORDERLESS };

/* For each kind of work, `who` is the role that a thread must have to do the work. Work needs
 * threads of the origin from which its bytes come. A demand without an order needs threads of both
 * origins.
 *
 * no_width: the role that is needed while the width is used up, that is, while no more threads may
 * do work for which no reader waits. Then only urgent orders, PAGE_INs and readers' demands need
 * threads. no_slot: the role that is needed while no slot is free. Then a fill that is ordered but
 * has not begun needs no thread. */
TEST(work_needs_threads_that_do_it) {
    const uint32_t all = MONARCH_DOES_ALL, ahead = MONARCH_READS_AHEAD;
    const struct {
        enum task work;
        uint32_t who, no_width, no_slot;
    } cases[] = {{NONE, 0, 0, 0},       {URGENT, all, all, 0},     {PAGES, ahead, ahead, ahead},
                 {IN_USE, all, 0, 0},   {NORMAL, all, 0, 0},       {BLOCK, all, 0, all},
                 {DEMAND, all, all, 0}, {ORDERLESS, all, all, all}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int way = 0; way < 3; way++) {
            make();
            struct fill f = {.job = &of_source, .blocks = 2, .blocks_left = 2, .units = 2};
            enum task work = cases[i].work;
            if (work == URGENT)
                monarch_push(&p->urgent, &of_source);
            if (work == PAGES)
                monarch_push(&p->to_page_in, &page_in);
            if (work == IN_USE)
                monarch_push(&p->in_use[MONARCH_FROM_SOURCE], &of_source);
            if (work == NORMAL || work == DEMAND)
                monarch_push(&p->normal[MONARCH_FROM_SOURCE], &of_source);
            if (work == BLOCK)
                monarch_add_fill(p, &f);
            if (work == DEMAND) {
                monarch_remember(p, &of_source);
                e->clients->demand[9] = monarch_demand(5, 0, 2, 0);
            }
            if (work == ORDERLESS) {
                p->shared.writer = (struct monarch_writer *)p;
                e->clients->demand[9] = monarch_demand(8, 0, 2, 0);
            }
            if (way == 1)
                p->unasked[MONARCH_FROM_SOURCE] = p->width[MONARCH_FROM_SOURCE];
            if (way == 2)
                p->free_slots = 0;
            uint32_t right = way == 0   ? cases[i].who
                             : way == 1 ? cases[i].no_width
                                        : cases[i].no_slot;
            SAME(monarch_whom_it_needs(p, MONARCH_FROM_SOURCE), right);
            SAME(monarch_whom_it_needs(p, MONARCH_FROM_PEER), work == ORDERLESS ? all : 0);
            done();
        }
}

/* If several kinds of work are queued, threads of all these kinds are needed. If only
 * MONARCH_SLOTS_OF_SOURCE slots are free, they are left to fills from the sources, and no thread is
 * needed for peers. */
TEST(work_of_several_kinds_needs_threads_of_all_kinds) {
    make();
    monarch_push(&p->to_page_in, &page_in);
    monarch_push(&p->normal[MONARCH_FROM_SOURCE], &of_source);
    monarch_push(&p->in_use[MONARCH_FROM_PEER], &of_peer);
    SAME(monarch_whom_it_needs(p, MONARCH_FROM_SOURCE), MONARCH_DOES_ALL | MONARCH_READS_AHEAD);
    SAME(monarch_whom_it_needs(p, MONARCH_FROM_PEER), MONARCH_DOES_ALL);
    p->free_slots = MONARCH_SLOTS_OF_SOURCE;
    SAME(monarch_whom_it_needs(p, MONARCH_FROM_SOURCE), MONARCH_DOES_ALL | MONARCH_READS_AHEAD);
    SAME(monarch_whom_it_needs(p, MONARCH_FROM_PEER), 0);
    monarch_ring_one(p, MONARCH_FROM_PEER, 0);
    SAME(rings, 0);
    done();
}

/* When a thread takes an order for which a reader waits, the order gets a slot. From then on, the
 * order counts as an order of a file in use. */
TEST(an_order_with_a_reader_is_in_use) {
    for (int in_use = 0; in_use < 2; in_use++) {
        make();
        struct worker me = {.pool = p, .origin = MONARCH_FROM_SOURCE, .peer = -1};
        struct work w = {0};
        p->slot[p->free_slots - 1] = 33;
        monarch_enqueue(p, p->normal, in_use, &of_source);
        SAME(find_queued(p, &me, 99, &w), 0);
        SAME(p->pending[in_use][MONARCH_FROM_SOURCE], 1);
        SAME(find_queued(p, &me, 5, &w), 1);
        CHECK(w.job == &of_source && of_source.slot == 33 && of_source.result.in_use == 1);
        SAME(p->pending[0][MONARCH_FROM_SOURCE], 0);
        SAME(p->pending[1][MONARCH_FROM_SOURCE], 1);
        SAME(p->normal[MONARCH_FROM_SOURCE].length, 0);
        SAME(monarch_has_order(p, 5), 0);
        done();
    }
}

/* While a reader reads a file, a thread moves the next unit before the reader asks for it. If the
 * unit comes from a peer, this is always done. If it comes from a source, this is done only while
 * the width allows another thread to do work for which no reader waits. */
TEST(units_ahead_of_readers_of_a_peer_need_no_width) {
    for (int origin = 0; origin < MONARCH_ORIGINS; origin++)
        for (int has_width = 0; has_width < 2; has_width++) {
            make();
            struct job *job = origin == MONARCH_FROM_SOURCE ? &of_source : &of_peer;
            uint64_t claimed[1] = {1};
            struct fill f = {.job = job,
                             .blocks = 1,
                             .blocks_left = 1,
                             .next_block = 1,
                             .units = 2,
                             .asked_ns = 1,
                             .next_unit = 1,
                             .claimed = claimed};
            struct worker me = {.pool = p, .origin = (enum monarch_origin)origin, .peer = -1};
            struct work w = {0};
            job->result.in_use = 1;
            monarch_add_fill(p, &f);
            p->unasked[origin] = has_width ? 0 : p->width[origin];
            int is_found = has_width || origin == MONARCH_FROM_PEER;
            SAME(find_unasked(p, &me, 1, &w), is_found);
            if (is_found)
                CHECK(w.fill == &f && w.is_unit && w.unit == 1 && monarch_is_claimed(&f, 1));
            done();
        }
}

/* The unit that a reader demands is claimed by one thread. After that, this demand needs no other
 * thread, and the units behind this unit are filled next. */
TEST(a_demand_is_taken_once) {
    make();
    struct monarch_fill map = {0};
    uint64_t claimed[1] = {0};
    struct fill f = {.job = &of_source,
                     .map = &map,
                     .blocks = 1,
                     .blocks_left = 1,
                     .next_block = 1,
                     .units = 8,
                     .claimed = claimed};
    struct worker me = {.pool = p, .origin = MONARCH_FROM_SOURCE, .peer = -1};
    struct waiting reader = {.demand = monarch_demand(5, 3, 2, 7), .place = 9};
    struct work w = {0};
    e->clients->demand[9] = reader.demand;
    monarch_add_fill(p, &f);
    SAME(has_demand(p, MONARCH_FROM_SOURCE), 1);
    SAME(has_demand(p, MONARCH_FROM_PEER), 0);
    SAME(find_unit(p, &me, &f, &reader, &w), 1);
    CHECK(w.fill == &f && w.unit == 3 && w.is_unit && f.users == 1 && claimed[0] == 8);
    CHECK(f.next_unit == 4 && f.asked_by == 7 && f.asked_ns && p->taken[9] == reader.demand);
    SAME(has_demand(p, MONARCH_FROM_SOURCE), 0);
    e->clients->demand[9] = reader.demand = monarch_demand(5, 3, 4, 7); /* it waits again */
    SAME(has_demand(p, MONARCH_FROM_SOURCE), 1);
    SAME(find_unit(p, &me, &f, &reader, &w), 0); /* another thread moves the unit */
    SAME(f.users, 1);
    CHECK(e->clients->demand[9] == reader.demand);
    map.done[0] = 8; /* the unit has come, so the demand is answered at once */
    SAME(find_unit(p, &me, &f, &reader, &w), 0);
    SAME(e->clients->demand[9], 0);
    done();
}
