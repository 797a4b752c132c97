#include "engine/orders.h"

#include <stdlib.h>
#include <string.h>

#include "copy/pack.h"
#include "engine/schedule.h"
#include "publish/writer.h"

/* Files of this size [bytes] or larger are placed in no tier, so that sums of sizes do not
 * overflow. */
#define LARGEST (1ULL << 51)

static_assert(MONARCH_ASKED == 2, "a home names two peers to ask");

/* --- one order -------------------------------------------------------------------------------- */

struct job *monarch_new_order(struct pool *p, const struct monarch_catalog *c, int kind,
                              uint64_t id, uint32_t tier, uint64_t copy, uint64_t sum,
                              const int32_t *peers) {
    const struct monarch_entry *entry = &monarch_entries(c)[id];
    struct job *job = calloc(1, sizeof *job + entry->path_len + 1u);
    if (!job)
        return NULL;
    job->slot = job->handed = -1;
    job->result.id = id;
    job->result.kind = (uint32_t)kind;
    job->result.tier = tier;
    job->result.copy = copy;
    job->result.home = -1;
    job->result.mtime_ns = entry->mtime_ns;
    job->result.ctime_ns = entry->ctime_ns;
    job->entry = *entry;
    job->expected_sum = sum;
    /* An order for an empty file asks no peer. A peer sends no bytes of such a file, and so cannot
     * vouch that the file is unchanged. */
    for (int i = 0; i < MONARCH_ASKED + MONARCH_MOVES; i++) {
        int is_asked = i < MONARCH_ASKED && peers && p->peer_threads && entry->size;
        int peer = is_asked ? peers[i] : -1;
        job->has_it |= (peer >= MONARCH_HAS_IT) << i;
        job->peer[i] = peer >= MONARCH_HAS_IT ? peer - MONARCH_HAS_IT : peer;
    }
    job->source_root = p->roots[entry->source];
    job->copies = p->copies[tier];
    job->is_stamped = p->stamped >> tier & 1;
    job->stamp = monarch_stamp(p->salt, id);
    memcpy(job->path, monarch_pool(c, entry->path), entry->path_len + 1u);
    if (kind == MONARCH_FILL)
        monarch_pack_meet(&p->shared, job);
    return job;
}

/* --- orders in granted room --------------------------------------------------------------------
 * A file goes into the first tier that has enough room for it. This rule, and the count of the
 * bytes and inodes that a file needs, are the same as in monarch_py/policies/placement.py. */

/* Takes room for a file from the first tier whose granted room is large enough. Returns the tier's
 * number. Returns -1 if there is none; Python then decides where the file goes. is_staged: 1 if
 * this node does not keep the file. The file then goes into the staging area, otherwise into one of
 * the other tiers. is_part: only a part of the tier's room was granted. A file that does not fit
 * into this part may fit into the rest of the tier. So the search ends there with -1, and Python
 * decides. */
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

/* Stores in `asked` the peers that a fill of the file asks, by the rule of Nodes.asked
 * (monarch_py/daemon/nodes/nodes.py). Adds MONARCH_HAS_IT to a peer that is known to have the whole
 * file. Returns where this node keeps the file. */
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

struct job *monarch_place_granted(struct pool *p, struct monarch_catalog *c, uint64_t id) {
    struct grant *g = &p->grant;
    int32_t asked[MONARCH_ASKED];
    if (!g->holds || g->placed_count == MONARCH_PLACED)
        return NULL;
    struct monarch_entry *e = &monarch_table(c)[id];
    /* A copy number in the word means that an older version of the file has a copy. This copy must
     * be removed first. */
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
        /* The file's room was already subtracted from the grant, but no fill will use it. So end
         * this grant. The next grant has correct numbers. */
        g->holds = 0;
        return NULL;
    }
    monarch_set_word(c, e, id, monarch_word(MONARCH_FILLING, 0, (unsigned)tier, g->next_copy));
    g->placed[g->placed_count++] = (struct monarch_placed){id, g->next_copy++, (uint32_t)tier, 0};
    return job;
}

/* --- queues ----------------------------------------------------------------------------------- */

/* Room for the file was subtracted from the grant, but no fill uses this room. So end the grant,
 * whose numbers are now wrong. The next grant has correct numbers. */
void monarch_count(struct pool *p, const struct job *job, int more) {
    if (job->result.kind != MONARCH_PAGE_IN)
        p->pending[job->result.in_use][monarch_origin_of(job)] += (uint64_t)(int64_t)more;
    if (job->result.kind == MONARCH_FILL && monarch_origin_of(job) == MONARCH_FROM_SOURCE)
        p->source_fills += (uint32_t)more;
    if (job->peer[0] >= 0)
        p->asked[job->peer[0]] += (uint32_t)more;
}

void monarch_enqueue(struct pool *p, struct queue to[], int in_use, struct job *job) {
    job->result.in_use = in_use != 0;
    monarch_count(p, job, 1);
    monarch_push(&to[monarch_origin_of(job)], job);
    if (monarch_is_awaited(job))
        monarch_remember(p, job);
}

/* Adds `more` (1 or -1) to the counters of orders whose results Python has not taken. A PAGE_IN
 * reads a copy into memory, and nothing waits for it. So a PAGE_IN is not counted in `pending`,
 * which shows whether fills are under way. */
static int enqueue_all(struct pool *p, struct queue to[], int in_use, struct queue *fresh) {
    int made = (int)fresh->length;
    pthread_mutex_lock(&p->lock);
    for (struct job *job; (job = monarch_pop(fresh));)
        monarch_enqueue(p, job->is_kept ? p->in_use : to, in_use || job->is_kept, job);
    monarch_unlock_and_ring(p);
    return made;
}

/* --- calls from Python ------------------------------------------------------------------------ */

int monarch_engine_submit(struct monarch_engine *e, const struct monarch_catalog *c, int kind,
                          int in_use, uint64_t n, const uint64_t *ids, const uint32_t *tiers,
                          const uint64_t *copies, const uint64_t *sums, const int32_t *peers) {
    struct pool *p = (struct pool *)e;
    struct queue fresh = {NULL, NULL, 0};
    /* Moves all orders of `fresh` into the queues `to`, and returns their number. No other thread
     * sees `fresh`. An order with is_kept goes into the queue for files in use, because a program
     * has read its file. */
    if (e->writer)
        pthread_mutex_lock(&e->writer->lock);
    for (uint64_t i = 0; i < n; i++) {
        struct job *job =
            monarch_new_order(p, c, kind, ids[i], tiers[i], copies[i], sums ? sums[i] : 0,
                              peers ? peers + i * MONARCH_ASKED : NULL);
        if (!job)
            break;
        if (p->listener)
            p->listener->made(p, job);
        monarch_push(&fresh, job);
    }
    if (e->writer)
        pthread_mutex_unlock(&e->writer->lock);
    struct queue *queue = in_use ? p->in_use : p->normal;
    return enqueue_all(p, kind == MONARCH_PAGE_IN ? &p->to_page_in : queue, in_use, &fresh);
}

int monarch_engine_drop(struct monarch_engine *e, uint64_t n, const uint64_t *ids,
                        const uint32_t *tiers, const uint64_t *copies, const uint64_t *sizes) {
    struct pool *p = (struct pool *)e;
    struct queue fresh = {NULL, NULL, 0};
    for (uint64_t i = 0; i < n; i++) {
        struct job *job = calloc(1, sizeof *job + 1);
        if (!job)
            break;
        job->slot = job->handed = job->peer[0] = -1;
        job->result.kind = MONARCH_DROP;
        job->result.id = ids[i];
        job->result.tier = tiers[i];
        job->result.copy = copies[i];
        job->result.bytes = sizes[i];
        job->copies = p->copies[tiers[i]];
        monarch_push(&fresh, job);
    }
    return enqueue_all(p, &p->urgent, 1, &fresh);
}

uint64_t monarch_engine_withdraw(struct monarch_engine *e, uint64_t n, const uint64_t *ids) {
    struct pool *p = (struct pool *)e;
    uint64_t taken = 0;
    pthread_mutex_lock(&p->lock);
    for (uint64_t i = 0; i < n; i++) {
        struct job *job = monarch_queued_fill(p, ids[i]);
        /* Do not withdraw an order whose file is in use. A handed-over descriptor, or one that is
         * kept for the order, shows that a program has read the file. */
        if (!job || job->result.in_use || job->is_kept || job->handed >= 0)
            continue;
        monarch_unqueue(p, job);
        job->result.status = MONARCH_ABANDONED;
        monarch_push(&p->done, job);
        taken++;
    }
    pthread_mutex_unlock(&p->lock);
    return taken;
}
