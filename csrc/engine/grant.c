/* Places files in granted room, first fit. Decides as policy does
 * (monarch_py/policies/placement.py), and counts a file's bytes and inodes as policy does. */
#include "engine/grant.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clients/demands.h"
#include "copy/flow.h"
#include "engine/orders.h"
#include "engine/waking.h"
#include "publish/writer.h"
#include "shared/doorbell.h"

/* A file size [bytes] that fits into no tier. Sums of smaller sizes do not overflow. */
#define LARGEST (1ULL << 51)

static_assert(MONARCH_ASKED == 2, "a home names two peers to ask");

static int is_still_there(const struct pool *p, const struct waiting *reader) {
    const uint64_t *demand = &p->shared.clients->demand[reader->place];
    return __atomic_load_n(demand, __ATOMIC_ACQUIRE) == reader->demand;
}

/* --- one file --------------------------------------------------------------------------------- */

/* Takes room from the first tier that has enough, and returns that tier; -1 if none has. A file
 * that this node does not keep goes into the staging area, every other file into another tier. If a
 * tier's granted room is too small, but only part of the tier's room is granted, the file may still
 * fit into this tier. So later tiers are not tried then. */
static int take_room(struct grant *g, uint64_t size, int is_staged) {
    for (uint32_t t = 0; t < g->tiers && size < LARGEST; t++) {
        struct monarch_room *room = &g->room[t];
        if ((int)room->is_staging != is_staged || (room->largest && size > room->largest))
            continue;
        uint64_t blocks = (size + room->block_bytes - 1) / room->block_bytes;
        uint64_t need = blocks * room->block_bytes + room->entry_bytes;
        if (need <= room->bytes && room->inodes) {
            room->bytes -= need;
            room->inodes--;
            return (int)t;
        }
        if (room->is_part)
            return -1;
    }
    return -1;
}

/* Sets the peers that a fill asks, by the rule of Nodes.asked (monarch_py/daemon/nodes/nodes.py),
 * and marks the peer that is known to have the whole file. Returns where this node keeps the
 * file. */
static enum monarch_storage find_home(const struct pool *p, uint64_t id,
                                      int32_t asked[MONARCH_ASKED]) {
    const struct grant *g = &p->grant;
    asked[0] = asked[1] = -1;
    if (!g->home)
        return MONARCH_IN_TIERS;
    if (id >= g->homes || g->home[id].storage == MONARCH_NOT_TOLD)
        return MONARCH_NOT_TOLD;
    asked[0] = g->home[id].asked_first;
    asked[1] = g->home[id].asked_then;
    if (asked[0] >= 0 && asked[1] >= 0) {
        uint32_t first = p->asked[asked[0]], second = p->asked[asked[1]];
        if (second < first || (second == first && id % 2)) {
            int32_t owner = asked[0];
            asked[0] = asked[1];
            asked[1] = owner;
        }
    }
    for (int i = 0; i < MONARCH_ASKED; i++)
        if (asked[i] >= 0 && asked[i] + 1 == g->home[id].giver)
            asked[i] += MONARCH_HAS_IT;
    return g->home[id].storage;
}

void monarch_note_giver(struct pool *p, const struct monarch_result *fill) {
    if (fill->status == MONARCH_DONE && fill->giver >= 0 && fill->id < p->grant.homes)
        p->grant.home[fill->id].giver = (uint16_t)(fill->giver + 1);
}

static unsigned state_of(const struct monarch_catalog *c, uint64_t id) {
    return id < c->count ? MONARCH_WORD_STATE(monarch_entries(c)[id].word) : MONARCH_BYPASS;
}

/* Returns whether a client or a peer wants a copy of the file, and there is neither a copy nor a
 * fill. */
static int is_asked_for(const struct pool *p, const struct monarch_catalog *c, uint64_t id) {
    unsigned state = state_of(c, id);
    return state == MONARCH_WANTED ||
           (state == MONARCH_ABSENT && monarch_is_requested(p->shared.clients, id));
}

struct job *monarch_place_granted(struct pool *p, struct monarch_catalog *c, uint64_t id) {
    struct grant *g = &p->grant;
    int32_t asked[MONARCH_ASKED];
    if (!g->holds || g->placed_count == MONARCH_PLACED)
        return NULL;
    struct monarch_entry *e = &monarch_table(c)[id];
    /* A copy's number in the word belongs to an older copy, which must be removed first. */
    if (e->kind != MONARCH_FILE || MONARCH_WORD_COPY(e->word))
        return NULL;
    enum monarch_storage storage = find_home(p, id, asked);
    int tier =
        storage == MONARCH_NOT_TOLD ? -1 : take_room(g, e->size, storage == MONARCH_IN_STAGING);
    if (tier < 0)
        return NULL;
    struct job *job =
        monarch_new_order(p, c, MONARCH_FILL, id, (uint32_t)tier, g->next_copy, 0, asked);
    if (!job) {
        g->holds = 0; /* the room that is left is unknown now; wait for the next grant */
        return NULL;
    }
    monarch_set_word(c, e, id, monarch_word(MONARCH_FILLING, 0, (unsigned)tier, g->next_copy));
    g->placed[g->placed_count++] = (struct monarch_placed){id, g->next_copy++, (uint32_t)tier, 0};
    return job;
}

/* Orders a fill of the entry; returns whether it did. The caller holds the writer's lock and the
 * pool's. */
static int order(struct pool *p, struct monarch_catalog *c, uint64_t id) {
    struct job *job = monarch_place_granted(p, c, id);
    if (job)
        monarch_enqueue(p, p->in_use, 1, job);
    return job != NULL;
}

/* --- demands without an order ----------------------------------------------------------------- */

/* Orders a fill of the file for which the reader waits, if the grant allows it. Returns whether the
 * file is left to Python, which must order it or find out why it cannot be ordered. c: the catalog;
 * NULL if the writer's lock could not be taken, so that the file's state is unknown. */
static int is_left(struct pool *p, const struct waiting *reader, struct monarch_catalog *c) {
    struct grant *g = &p->grant;
    uint64_t id = monarch_demand_entry(reader->demand);
    if (!is_still_there(p, reader))
        return 0;
    /* A file that is FILLING and has no order is either about to be filled, or was just filled. */
    int is_filling = c && state_of(c, id) == MONARCH_FILLING;
    g->refused[reader->place] = reader->demand;
    g->is_early[reader->place] = !g->holds || is_filling;
    if (!g->holds || is_filling)
        return 0;
    if (!c || is_asked_for(p, c, id))
        return !(c && order(p, c, id));
    /* No fill of this file is under way, and none is asked for. So this demand came after the last
     * answer to the file's readers. Make the reader look at the file again. */
    monarch_answer(p->shared.clients, id, 0, MONARCH_FILL_UNITS);
    return 0;
}

/* Notes that there is work for the daemon's loop. Returns whether the caller must wake the loop,
 * because no other caller has done so since the loop's last rest. */
static int is_first(struct grant *g) {
    return !__atomic_exchange_n(&g->leaves, 1, __ATOMIC_SEQ_CST);
}

void monarch_end_rest(struct pool *p) {
    syscall(SYS_futex, &p->grant.leaves, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    monarch_doorbell_ring(&p->shared.clients->doorbell);
}

void monarch_order_demanded(struct pool *p, struct worker *me) {
    struct monarch_writer *w = p->shared.writer;
    /* The wait for this lock is limited: while the catalog grows, its writer holds the lock for a
     * long time. */
    int has_writer = monarch_lock_soon(w);
    int is_any = 0;
    pthread_mutex_lock(&p->lock);
    for (unsigned i = 0; i < me->unordered_count; i++)
        is_any |= is_left(p, &me->unordered[i], has_writer ? w->catalog : NULL);
    me->unordered_count = 0;
    int tells = is_any && is_first(&p->grant);
    monarch_unlock_and_ring(p);
    if (has_writer)
        pthread_mutex_unlock(&w->lock);
    if (tells)
        monarch_end_rest(p);
}

int monarch_leaves_again(struct pool *p, const struct job *job) {
    if (job->result.is_published || job->result.kind == MONARCH_PAGE_IN)
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
    monarch_unlock_and_ring(p); /* readers may have asked while there was no grant */
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

/* Number of entries whose homes are stored before the lock is released to let other threads in. */
#define TOLD_AT_ONCE 4096

static unsigned home_of(const struct monarch_home *home) {
    if (home->asked_first >= 0)
        return MONARCH_OF_OTHERS;
    return home->storage == MONARCH_IN_TIERS ? MONARCH_OWN : 0;
}

/* Writes into the catalog, where programs see it too, whether this node fills each file from the
 * source, from another node, or not at all. */
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
