#include "engine/grant.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clients/demands.h"
#include "engine/orders.h"
#include "engine/schedule.h"
#include "publish/writer.h"
#include "shared/doorbell.h"

/* --- demands without an order ----------------------------------------------------------------- */

static int is_still_there(const struct pool *p, const struct waiting *reader) {
    const uint64_t *demand = &p->shared.clients->demand[reader->place];
    return __atomic_load_n(demand, __ATOMIC_ACQUIRE) == reader->demand;
}

static unsigned state_of(const struct monarch_catalog *c, uint64_t id) {
    return id < c->count ? MONARCH_WORD_STATE(monarch_entries(c)[id].word) : MONARCH_BYPASS;
}

/* Returns whether the file has no copy and no fill, and a client or a peer wants a copy. */
static int is_asked_for(const struct pool *p, const struct monarch_catalog *c, uint64_t id) {
    unsigned state = state_of(c, id);
    return state == MONARCH_WANTED ||
           (state == MONARCH_ABSENT && monarch_is_requested(p->shared.clients, id));
}

/* Orders a fill of the entry's file, if the grant allows the fill. Returns whether the fill was
 * ordered. The caller holds the writer's lock and the pool's lock. */
static int order(struct pool *p, struct monarch_catalog *c, uint64_t id) {
    struct job *job = monarch_place_granted(p, c, id);
    if (job)
        monarch_enqueue(p, p->in_use, 1, job);
    return job != NULL;
}

/* Orders a fill of the file for which the reader waits, if the grant allows the fill. Returns 1 if
 * Python must decide instead: it orders the fill, or finds out why the fill is impossible. c: the
 * catalog. If the caller did not get the writer's lock, c is NULL, and the file's state is
 * unknown. */
static int is_left(struct pool *p, const struct waiting *reader, struct monarch_catalog *c) {
    struct grant *g = &p->grant;
    uint64_t id = monarch_demand_entry(reader->demand);
    if (!is_still_there(p, reader))
        return 0;
    /* The thread has found neither an order nor a fill of this file. If the file is FILLING
     * nevertheless, a fill is about to begin or has just ended. So order none now. Threads try
     * again after the next grant (is_early). */
    int is_filling = c && state_of(c, id) == MONARCH_FILLING;
    g->refused[reader->place] = reader->demand;
    g->is_early[reader->place] = !g->holds || is_filling;
    if (!g->holds || is_filling)
        return 0;
    if (!c || is_asked_for(p, c, id))
        return !(c && order(p, c, id));
    /* The file needs no fill: its state changed just before the reader wrote its demand. Wake the
     * reader, so that it looks at the state again. */
    monarch_answer(p->shared.clients, id, 0, MONARCH_FILL_UNITS);
    return 0;
}

/* Sets `leaves`, because there is work for the daemon's loop. Returns 1 if `leaves` was not set
 * yet; the caller must then wake the loop. */
static int is_first(struct grant *g) {
    return !__atomic_exchange_n(&g->leaves, 1, __ATOMIC_SEQ_CST);
}

void monarch_end_rest(struct pool *p) {
    syscall(SYS_futex, &p->grant.leaves, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    monarch_doorbell_ring(&p->shared.clients->doorbell);
}

void monarch_order_demanded(struct pool *p, struct worker *me, int looks) {
    struct monarch_writer *w = p->shared.writer;
    /* Waits only a short time for the writer's lock, because another thread holds it for a long
     * time while the catalog grows. */
    int has_writer = monarch_lock_soon(w);
    int is_any = 0;
    pthread_mutex_lock(&p->lock);
    for (unsigned i = 0; i < me->unordered_count; i++)
        is_any |= is_left(p, &me->unordered[i], has_writer ? w->catalog : NULL);
    me->unordered_count = 0;
    int tells = is_any && is_first(&p->grant);
    if (looks)
        monarch_unlock_and_look(p, me);
    else
        monarch_unlock_and_ring(p);
    if (has_writer)
        pthread_mutex_unlock(&w->lock);
    if (tells)
        monarch_end_rest(p);
}

int monarch_leaves_again(struct pool *p, const struct job *job) {
    if (job->result.kind == MONARCH_PAGE_IN)
        return 0;
    if (job->result.kind == MONARCH_FILL)
        return is_first(&p->grant);
    for (unsigned i = 0; i < MONARCH_DEMANDS; i++) {
        uint64_t d = __atomic_load_n(&p->shared.clients->demand[i], __ATOMIC_ACQUIRE);
        if (d && d == p->grant.refused[i])
            return is_first(&p->grant);
    }
    return 0;
}

/* --- calls from Python ------------------------------------------------------------------------ */

void monarch_engine_grant(struct monarch_engine *e, uint32_t tiers, const struct monarch_room *room,
                          uint64_t first_copy, uint32_t meets) {
    struct pool *p = (struct pool *)e;
    struct grant *g = &p->grant;
    pthread_mutex_lock(&p->lock);
    g->tiers = tiers;
    memcpy(g->room, room, tiers * sizeof *room);
    g->next_copy = first_copy;
    g->meets = meets;
    for (unsigned i = 0; i < MONARCH_DEMANDS; i++)
        if (g->is_early[i] ||
            __atomic_load_n(&p->shared.clients->demand[i], __ATOMIC_ACQUIRE) != g->refused[i])
            g->refused[i] = 0;
    memset(g->is_early, 0, sizeof g->is_early);
    g->holds = e->writer != NULL;
    /* While there was no grant, threads could order no fills for new demands. Now they can, so wake
     * the threads. */
    monarch_unlock_and_ring(p);
    if (p->listener)
        p->listener->granted(p);
}

uint64_t monarch_engine_end_grant(struct monarch_engine *e, struct monarch_placed *out) {
    struct pool *p = (struct pool *)e;
    struct grant *g = &p->grant;
    pthread_mutex_lock(&p->lock);
    uint64_t n = g->placed_count;
    memcpy(out, g->placed, n * sizeof *out);
    g->holds = 0;
    g->placed_count = 0;
    pthread_mutex_unlock(&p->lock);
    return n;
}

/* After storing this many homes, tell_homes releases the writer's lock for a moment, so that other
 * threads can take the lock. */
#define TOLD_AT_ONCE 4096

static unsigned home_of(const struct monarch_home *home) {
    if (home->asked_first >= 0)
        return MONARCH_OF_OTHERS;
    return home->storage == MONARCH_IN_TIERS ? MONARCH_OWN : 0;
}

/* After so many homes, tell_homes releases the writer's lock once, so that other threads can take
 * the lock in between. */
static void tell_homes(struct monarch_writer *w, uint64_t n, const uint64_t *ids,
                       const struct monarch_home *homes) {
    for (uint64_t i = 0; i < n;) {
        uint64_t end = n - i < TOLD_AT_ONCE ? n : i + TOLD_AT_ONCE;
        pthread_mutex_lock(&w->lock);
        for (; i < end; i++)
            monarch_set_home(w->catalog, ids[i], home_of(&homes[i]));
        pthread_mutex_unlock(&w->lock);
    }
}

int monarch_engine_homes(struct monarch_engine *e, uint64_t n, const uint64_t *ids,
                         const struct monarch_home *homes) {
    struct pool *p = (struct pool *)e;
    struct grant *g = &p->grant;
    uint64_t last = 0;
    int r = 0;
    for (uint64_t i = 0; i < n; i++)
        last = ids[i] >= last ? ids[i] + 1 : last;
    pthread_mutex_lock(&p->lock);
    if (last > g->homes || !g->home) {
        uint64_t more = last > g->homes + g->homes / 2 ? last : g->homes + g->homes / 2;
        struct monarch_home *home = realloc(g->home, (more + 1) * sizeof *home);
        if (home) {
            memset(home + g->homes, 0, (more + 1 - g->homes) * sizeof *home);
            g->home = home;
            g->homes = more;
        } else {
            r = -1;
        }
    }
    for (uint64_t i = 0; i < n && r == 0; i++)
        g->home[ids[i]] = homes[i];
    pthread_mutex_unlock(&p->lock);
    if (r == 0 && e->writer)
        tell_homes(e->writer, n, ids, homes);
    return r;
}

int monarch_engine_rest(struct monarch_engine *e, uint32_t limit_us) {
    struct timespec limit = {limit_us / 1000000, limit_us % 1000000 * 1000L};
    struct grant *g = &((struct pool *)e)->grant;
    uint32_t *leaves = &g->leaves;
    __atomic_fetch_add(&g->iterations, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, leaves, FUTEX_WAIT_PRIVATE, 0, &limit, NULL, 0);
    return __atomic_exchange_n(leaves, 0, __ATOMIC_SEQ_CST) != 0;
}
