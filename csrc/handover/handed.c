#include "handover/handed.h"

#include <unistd.h>

#include "engine/orders.h"
#include "publish/writer.h"
#include "shared/claims.h"

/* --- the descriptor --------------------------------------------------------------------------- */

void monarch_give_back(struct pool *p, struct handed *h) {
    if (h->fd < 0)
        return;
    close(h->fd);
    h->fd = -1;
    monarch_end_claim(p->shared.clients, h->claim);
}

void monarch_hand_to(struct handed *h, struct job *job) {
    job->handed = h->fd;
    job->claim = h->claim;
    job->is_read = h->is_read;
    h->fd = -1;
}

/* --- the order -------------------------------------------------------------------------------- */

/* Removes a queued order from its queue and returns it. If the order asks peers, or another
 * descriptor is already kept for it, leaves it queued and returns NULL. */
static struct job *take_queued(struct pool *p, struct job *job) {
    if (job->is_kept || monarch_origin_of(job) != MONARCH_FROM_SOURCE)
        return NULL;
    monarch_unqueue(p, job);
    p->pending[job->result.in_use][MONARCH_FROM_SOURCE]--;
    p->pending[job->result.in_use = 1][MONARCH_FROM_SOURCE]++;
    return job;
}

/* Finds the order to fill a file that is FILLING. Returns NOT_YET if there is neither an order nor
 * a fill at this moment. This has two possible reasons. The daemon has set the file's state, but
 * has not submitted the order yet. Or a thread has just taken the order, but has not added its fill
 * to the list of fills yet. */
static enum monarch_answer find_filling(struct pool *p, uint64_t id, struct job **job) {
    struct job *queued = monarch_queued_fill(p, id);
    if (!queued && !monarch_fill_of(p, id) && !monarch_has_order(p, id))
        return MONARCH_NOT_YET;
    *job = queued ? take_queued(p, queued) : NULL;
    return MONARCH_TAKEN;
}

/* Makes an order to fill the file, if the grant allows the fill. The fill asks no peer, because
 * this node has already got the bytes for the program. */
static enum monarch_answer place(struct pool *p, struct monarch_catalog *c, uint64_t id,
                                 struct job **job) {
    if (!p->grant.holds)
        return MONARCH_NOT_YET;
    *job = monarch_place_granted(p, c, id);
    if (!*job)
        return MONARCH_REFUSED;
    for (int i = 0; i < MONARCH_ASKED; i++)
        (*job)->peer[i] = -1;
    (*job)->result.in_use = 1;
    monarch_count(p, *job, 1);
    return MONARCH_TAKEN;
}

/* Adds the file to the catalog. Returns REFUSED if the grant does not allow this or the catalog is
 * full. The daemon then adds the file later. */
static enum monarch_answer meet(struct pool *p, struct monarch_catalog *c, struct handed *h) {
    uint64_t id, added = 0;
    if (!p->grant.holds)
        return MONARCH_NOT_YET;
    if (!(p->grant.meets >> h->entry.source & 1) ||
        !monarch_add(c, &h->entry, 1, h->path, &id, &added) || id >= MONARCH_MAX_FILES)
        return MONARCH_REFUSED;
    h->id = id;
    if (__atomic_load_n(&p->shared.clients->renames, __ATOMIC_SEQ_CST) != h->renames && added)
        /* A directory was renamed after the path was looked up, so the path may be wrong. Make no
         * copy. */
        monarch_set_word(c, &monarch_table(c)[id], id,
                         monarch_word(MONARCH_BYPASS, MONARCH_CHANGED, 0, 0));
    if (h->is_read)
        monarch_set_bit(&p->shared.clients->read, id);
    return MONARCH_TAKEN;
}

enum monarch_answer monarch_order_handed(struct pool *p, struct monarch_catalog *c,
                                         struct handed *h, struct job **job) {
    enum monarch_answer met = h->id == MONARCH_NO_ENTRY ? meet(p, c, h) : MONARCH_TAKEN;
    *job = NULL;
    if (met != MONARCH_TAKEN)
        return met;
    if (h->id >= c->count || monarch_entries(c)[h->id].ino != h->entry.ino)
        return MONARCH_ANOTHERS;
    switch (MONARCH_WORD_STATE(monarch_entries(c)[h->id].word)) {
    case MONARCH_FILLING:
        return find_filling(p, h->id, job);
    case MONARCH_ABSENT:
    case MONARCH_WANTED:
        return place(p, c, h->id, job);
    default:
        return MONARCH_TAKEN;
    }
}

int monarch_asks_policy(struct pool *p, const struct handed *h) {
    return h->id == MONARCH_NO_ENTRY || monarch_set_bit(&p->shared.clients->wanted, h->id);
}
