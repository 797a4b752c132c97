/* Tests engine/grant.c: the fills that threads order for readers within a grant, the wake-ups of
 * the daemon's loop, and the homes of files. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clients/demands.h"
#include "engine/orders.h"
#include "engine/schedule.h"
#include "publish/writer.h"
#include "shared/doorbell.h"

/* These variables record what the engine did: how often it rang for its threads and for the daemon,
 * which fills it ordered, for which entries it answered demands, and which homes it stored.
 * `answered` is the sum of the entries' numbers; a wrong answer adds 1000. */
static int rings, looks, bells, wakes, can_lock = 1, places, lacks_memory, locks;
static uint64_t ordered[8], ordered_count, answered;
static unsigned homes_told[16];
static void unlock_and_ring(struct pool *p) {
    rings++;
    pthread_mutex_unlock(&p->lock);
}
static void unlock_and_look(struct pool *p, const struct worker *me) {
    looks += me->pool == p;
    pthread_mutex_unlock(&p->lock);
}
static void ring_doorbell(uint32_t *bell) { bells++; }
static int lock_soon(struct monarch_writer *w) {
    return can_lock && pthread_mutex_lock(&w->lock) == 0;
}
static struct job *place(struct pool *p, struct monarch_catalog *c, uint64_t id) {
    if (!places)
        return NULL;
    ordered[ordered_count++] = id;
    struct job *job = calloc(1, sizeof *job + 1);
    job->result.id = id;
    job->peer[0] = -1;
    return job;
}
static void answer(struct monarch_clients *m, uint64_t entry, uint64_t first, uint64_t count) {
    answered += first == 0 && count == MONARCH_FILL_UNITS ? entry : 1000;
}
static void set_home(struct monarch_catalog *c, uint64_t id, unsigned home) {
    homes_told[id % 16] = home;
    locks += id % 16 == 0;
}
static void *scarce_realloc(void *old, size_t n) { return lacks_memory ? NULL : realloc(old, n); }
static struct timespec rest_limit;
static uint32_t rest_word;
static long futex(long number, uint32_t *word, int how, uint32_t value,
                  const struct timespec *limit, void *none, int bits) {
    wakes += how == FUTEX_WAKE_PRIVATE && value == 1;
    if (how == FUTEX_WAIT_PRIVATE) {
        rest_limit = *limit;
        rest_word = value;
    }
    return 0;
}
#define monarch_unlock_and_ring unlock_and_ring
#define monarch_unlock_and_look unlock_and_look
#define monarch_doorbell_ring ring_doorbell
#define monarch_lock_soon lock_soon
#define monarch_place_granted place
#define monarch_answer answer
#define monarch_set_home set_home
#define realloc scarce_realloc
#define syscall futex
#include "engine/grant.c"
#undef realloc
#undef syscall

#include "checks.h"

static struct pool *p;
static struct monarch_engine *e;
static struct monarch_writer *w;
static struct monarch_catalog *c;

static void make(void) {
    e = make_engine(4096);
    w = monarch_writer_new();
    c = w->catalog = make_catalog(8);
    p = calloc(1, sizeof *p);
    p->shared = *e;
    p->shared.writer = w;
    pthread_mutex_init(&p->lock, NULL);
    for (int i = 0; i < 4; i++)
        add_entry(c, (char[]){(char)('a' + i), 0}, (struct monarch_entry){.kind = MONARCH_FILE});
    rings = looks = bells = wakes = locks = 0;
    can_lock = places = 1;
    ordered_count = answered = 0;
}

static void done(void) {
    for (struct job *job; (job = monarch_pop(&p->in_use[MONARCH_FROM_SOURCE]));)
        free(job);
    free(p->grant.home);
    free(c);
    monarch_writer_free(w);
    free(p);
    free_engine(e);
}

/* Makes a reader wait in a slot, and adds this reader to the worker's list `unordered`. */
static void demand(struct worker *me, uint8_t slot, uint64_t id) {
    uint64_t d = e->clients->demand[slot] = monarch_demand(id, 0, 3, 0);
    me->unordered[me->unordered_count++] = (struct waiting){.demand = d, .place = slot};
}

/* --- readers whose files have no order -------------------------------------------------------- */

/* A reader's file is filled at once if there is a grant. Otherwise the reader waits for the next
 * grant, or until the daemon's loop, which is written in Python, orders the fill. A reader whose
 * file needs no fill is answered. The loop is woken only if it must act. */
TEST(a_reader_gets_a_fill_within_the_grant) {
    const unsigned wanted = MONARCH_WANTED, absent = MONARCH_ABSENT, filling = MONARCH_FILLING,
                   present = MONARCH_PRESENT;
    const struct {
        int holds, has_writer, places, is_requested;
        unsigned state;
        int is_ordered, is_answered, is_noted, is_early, wakes;
    } cases[] = {
        {1, 1, 1, 0, wanted, 1, 0, 1, 0, 0},  /* it is filled */
        {1, 1, 1, 1, absent, 1, 0, 1, 0, 0},  /* it is filled, because a client has requested it */
        {1, 1, 1, 0, absent, 0, 1, 1, 0, 0},  /* nobody asks for a copy */
        {1, 1, 1, 1, present, 0, 1, 1, 0, 0}, /* there is a copy */
        {1, 1, 0, 0, wanted, 0, 0, 1, 0, 1},  /* the grant has no room */
        {1, 0, 1, 0, wanted, 0, 0, 1, 0, 1},  /* the catalog cannot be read now */
        {1, 1, 1, 0, filling, 0, 0, 1, 1, 0}, /* it is being filled */
        {0, 1, 1, 0, wanted, 0, 0, 1, 1, 0},  /* there is no grant */
        {0, 0, 1, 0, filling, 0, 0, 1, 1, 0},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        make();
        struct worker me = {.pool = p};
        demand(&me, 9, 2);
        p->grant.holds = cases[i].holds;
        can_lock = cases[i].has_writer;
        places = cases[i].places;
        monarch_table(c)[2].word = monarch_word(cases[i].state, 0, 0, 0);
        if (cases[i].is_requested)
            monarch_set_bit(&e->clients->wanted, 2);
        if (!can_lock) /* another thread has the lock and keeps it */
            pthread_mutex_lock(&w->lock);
        monarch_order_demanded(p, &me, i % 2);
        if (!can_lock) {
            SAME(pthread_mutex_trylock(&w->lock), EBUSY);
            pthread_mutex_unlock(&w->lock);
        }
        SAME(me.unordered_count, 0);
        SAME(ordered_count, cases[i].is_ordered);
        if (ordered_count) {
            CHECK(ordered[0] == 2 && p->in_use[MONARCH_FROM_SOURCE].length == 1);
            CHECK(p->in_use[MONARCH_FROM_SOURCE].first->result.in_use && monarch_has_order(p, 2));
        }
        SAME(answered, cases[i].is_answered ? 2 : 0);
        SAME(p->grant.refused[9] == e->clients->demand[9], cases[i].is_noted);
        SAME(p->grant.is_early[9], cases[i].is_early);
        SAME(bells, cases[i].wakes);
        SAME(wakes, cases[i].wakes);
        SAME(p->grant.leaves, cases[i].wakes);
        /* if `me` looks for work next, no other thread of its origin is woken for this work */
        CHECK(rings == !(i % 2) && looks == i % 2);
        CHECK(pthread_mutex_trylock(&w->lock) == 0 && pthread_mutex_trylock(&p->lock) == 0);
        pthread_mutex_unlock(&w->lock);
        pthread_mutex_unlock(&p->lock);
        done();
    }
}

/* If a reader is gone, or waits for something else now, nothing is ordered for it. Entries that are
 * not in the catalog need no fill. */
TEST(a_reader_that_is_gone_gets_nothing) {
    make();
    struct worker me = {.pool = p};
    p->grant.holds = 1;
    demand(&me, 9, 2);
    e->clients->demand[9] = monarch_demand(2, 0, 4, 0);
    monarch_order_demanded(p, &me, 0);
    CHECK(!ordered_count && !p->grant.refused[9] && !bells);
    SAME(state_of(c, 3), MONARCH_WORD_STATE(monarch_table(c)[3].word));
    SAME(state_of(c, 4), MONARCH_BYPASS);
    done();
}

/* The daemon's loop is woken once for all readers that the threads leave to it. It is not woken
 * again before it has called monarch_engine_rest. */
TEST(the_loop_is_woken_once_for_all) {
    make();
    struct worker me = {.pool = p};
    p->grant.holds = 1;
    places = 0;
    for (int turn = 0; turn < 2; turn++) {
        for (uint8_t i = 0; i < 4; i++) {
            monarch_table(c)[i].word = monarch_word(MONARCH_WANTED, 0, 0, 0);
            demand(&me, i, i);
        }
        monarch_order_demanded(p, &me, 0);
        SAME(bells, 1);
    }
    SAME(monarch_engine_rest((struct monarch_engine *)p, 1500000), 1);
    CHECK(rest_limit.tv_sec == 1 && rest_limit.tv_nsec == 500000000 && rest_word == 0);
    SAME(p->grant.iterations, 1);
    SAME(monarch_engine_rest((struct monarch_engine *)p, 0), 0);
    SAME(p->grant.iterations, 2);
    demand(&me, 1, 1);
    monarch_order_demanded(p, &me, 0);
    SAME(bells, 2);
    done();
}

/* An order that publishes no copy may leave work to the daemon's loop. A fill always wakes the
 * loop, and a PAGE_IN never does. An order of any other kind wakes the loop only if a demand that
 * the threads have refused still waits. After one wake, the loop is not woken again before it has
 * rested. */
TEST(an_order_without_a_copy_leaves_work) {
    const struct {
        int kind, waits, is_woken;
    } cases[] = {{MONARCH_FILL, 0, 1},  {MONARCH_FILL, 1, 1},   {MONARCH_DROP, 0, 0},
                 {MONARCH_DROP, 1, 1},  {MONARCH_DROP, 2, 0},   {MONARCH_CHECK, 1, 1},
                 {MONARCH_CHECK, 0, 0}, {MONARCH_PAGE_IN, 1, 0}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        make();
        struct job job = {.result.kind = (uint32_t)cases[i].kind};
        uint64_t *last = &e->clients->demand[MONARCH_DEMANDS - 1];
        *last = cases[i].waits ? monarch_demand(1, 0, 3, 0) : 0;
        p->grant.refused[MONARCH_DEMANDS - 1] = cases[i].waits == 2 ? *last + 1 : *last;
        SAME(monarch_leaves_again(p, &job), cases[i].is_woken);
        SAME(monarch_leaves_again(p, &job), 0);
        done();
    }
}

/* --- grants ----------------------------------------------------------------------------------- */

static int granted;
static void note_grant(struct pool *of) {
    CHECK(of == p && pthread_mutex_trylock(&p->lock) == 0);
    pthread_mutex_unlock(&p->lock);
    granted++;
}

/* A new grant sets the room in the tiers and the number of the next copy. It makes the engine
 * forget two kinds of refused demands: those that came too early, and those whose slot holds
 * another demand by now. The threads are woken, and look at the slots of these demands again. The
 * listener is told of the grant. */
TEST(a_grant_begins_anew) {
    const struct listener listener = {.granted = note_grant};
    const struct monarch_room rooms[] = {{.bytes = 5}, {.bytes = 6}, {.bytes = 7}};
    make();
    p->listener = &listener;
    struct grant *g = &p->grant;
    for (int i = 0; i < 4; i++) {
        e->clients->demand[i] = i == 2 ? 12 : 10;
        g->refused[i] = 10;
        g->is_early[i] = i == 1;
    }
    monarch_engine_grant(&p->shared, 2, rooms, 77, 5);
    CHECK(g->tiers == 2 && g->next_copy == 77 && g->meets == 5 && g->holds == 1);
    CHECK(g->room[0].bytes == 5 && g->room[1].bytes == 6 && g->room[2].bytes == 0);
    CHECK(g->refused[0] == 10 && g->refused[1] == 0 && g->refused[2] == 0 && g->refused[3] == 10);
    SAME(g->is_early[1], 0);
    CHECK(rings == 1 && granted == 1);
    p->shared.writer = NULL; /* without a writer, Python orders all fills */
    monarch_engine_grant(&p->shared, 1, rooms, 78, 0);
    SAME(g->holds, 0);
    p->listener = NULL;
    monarch_engine_grant(&p->shared, 1, rooms, 78, 0);
    SAME(granted, 2);
    done();
}

/* The end of a grant reports the fills that were ordered within it. A second call reports none. */
TEST(an_ended_grant_tells_its_fills) {
    struct monarch_placed out[MONARCH_PLACED];
    make();
    p->grant.holds = 1;
    p->grant.placed_count = 2;
    p->grant.placed[1] = (struct monarch_placed){.id = 3, .copy = 9};
    SAME(monarch_engine_end_grant(&p->shared, out), 2);
    CHECK(out[1].id == 3 && out[1].copy == 9 && !p->grant.holds);
    SAME(monarch_engine_end_grant(&p->shared, out), 0);
    done();
}

/* --- homes ------------------------------------------------------------------------------------ */

/* The home of a file names the node that keeps the file. When Python reports a file's home, the
 * engine stores this home in the table of homes and in the catalog. The table grows as needed. A
 * file whose home was not reported has the home MONARCH_NOT_TOLD in the table. */
TEST(homes_are_kept_for_each_file) {
    make();
    const struct monarch_home own = {.asked_first = -1, .storage = MONARCH_IN_TIERS},
                              staged = {.asked_first = -1, .storage = MONARCH_IN_STAGING},
                              others = {.asked_first = 0, .storage = MONARCH_IN_TIERS};
    const struct monarch_home first[] = {own, others, staged};
    const uint64_t ids[] = {5, 1, 3};
    CHECK(!p->grant.home);
    SAME(monarch_engine_homes(&p->shared, 0, NULL, NULL), 0);
    CHECK(p->grant.home && p->grant.homes == 0); /* even an empty list makes the table */
    SAME(monarch_engine_homes(&p->shared, 3, ids, first), 0);
    SAME(p->grant.homes, 6);
    for (uint64_t i = 0; i < 6; i++)
        SAME(p->grant.home[i].storage, i == 5 || i == 1 ? MONARCH_IN_TIERS
                                       : i == 3         ? MONARCH_IN_STAGING
                                                        : MONARCH_NOT_TOLD);
    SAME(p->grant.home[1].asked_first, 0);
    SAME(homes_told[5], MONARCH_OWN);
    SAME(homes_told[1], MONARCH_OF_OTHERS);
    SAME(homes_told[3], 0);
    const uint64_t next = 6, far = 40;
    SAME(monarch_engine_homes(&p->shared, 1, &next, &own), 0);
    SAME(p->grant.homes, 9); /* the table grows by half, so it is not moved often */
    CHECK(p->grant.home[6].storage == MONARCH_IN_TIERS && !p->grant.home[8].storage);
    SAME(monarch_engine_homes(&p->shared, 1, &far, &staged), 0);
    CHECK(p->grant.homes == 41 && p->grant.home[40].storage == MONARCH_IN_STAGING);
    CHECK(p->grant.home[5].storage == MONARCH_IN_TIERS && !p->grant.home[39].storage);
    lacks_memory = 1;
    const uint64_t too_far = 1000, known = 2;
    homes_told[too_far % 16] = 99;
    SAME(monarch_engine_homes(&p->shared, 1, &too_far, &own), -1);
    SAME(homes_told[too_far % 16], 99);
    SAME(monarch_engine_homes(&p->shared, 1, &known, &own), 0); /* the table has room for file 2 */
    lacks_memory = 0;
    p->shared.writer = NULL;
    homes_told[2] = 99;
    SAME(monarch_engine_homes(&p->shared, 1, &known, &others), 0);
    CHECK(homes_told[2] == 99 && p->grant.home[2].asked_first == 0);
    done();
}

/* However long a list of homes is, all homes in the list are stored in the catalog. Afterwards the
 * writer's lock is free. */
TEST(long_lists_of_homes_are_stored_in_parts) {
    const uint64_t lengths[] = {TOLD_AT_ONCE - 1, TOLD_AT_ONCE, TOLD_AT_ONCE + 1,
                                2 * TOLD_AT_ONCE + 16};
    for (int i = 0; i < 4; i++) {
        make();
        uint64_t n = lengths[i];
        uint64_t *ids = calloc(n, sizeof *ids);
        struct monarch_home *homes = calloc(n, sizeof *homes);
        for (uint64_t k = 0; k < n; k++)
            ids[k] = k;
        SAME(monarch_engine_homes(&p->shared, n, ids, homes), 0);
        SAME(locks, (n + 15) / 16); /* each sixteenth entry counts */
        SAME(homes_told[(n - 1) % 16], MONARCH_OF_OTHERS);
        SAME(pthread_mutex_trylock(&w->lock), 0);
        pthread_mutex_unlock(&w->lock);
        free(ids);
        free(homes);
        done();
    }
}
