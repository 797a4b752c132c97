#include "handed.h"

#include "orders.h"

/* An order that waits for its turn has it now; one for which peers are asked, or for which another
 * descriptor waits, stays as it is. */
static struct job *take_queued(struct pool *p, struct job *job) {
    if (job->is_kept || monarch_way_of(job) != MONARCH_FROM_SOURCE)
        return NULL;
    monarch_unqueue(p, job);
    p->pending[job->result.in_use][MONARCH_FROM_SOURCE]--;
    p->pending[job->result.in_use = 1][MONARCH_FROM_SOURCE]++;
    return job;
}

/* The same of a file without an order. Its bytes are here, so that no peer is asked. */
static struct job *place(struct pool *p, struct monarch_catalog *c, uint64_t id) {
    struct job *job = monarch_place_granted(p, c, id);
    if (!job)
        return NULL;
    for (int i = 0; i < MONARCH_ASKED; i++)
        job->peer[i] = -1;
    job->result.in_use = 1;
    monarch_count(p, job, 1);
    return job;
}

/* Policy says that a file is being filled before it hands its order over, and a thread takes an
 * order before its fill is known. */
static enum monarch_handed find_filling(struct pool *p, uint64_t id, struct job **job) {
    struct job *queued = monarch_queued_fill(p, id);
    if (!queued && !monarch_fill_of(p, id))
        return MONARCH_NOT_YET;
    *job = queued ? take_queued(p, queued) : NULL;
    return MONARCH_TAKEN;
}

enum monarch_handed monarch_order_handed(struct pool *p, struct monarch_catalog *c, uint64_t id,
                                         uint64_t ino, struct job **job) {
    *job = NULL;
    if (id >= c->count || monarch_entries(c)[id].ino != ino)
        return MONARCH_ANOTHERS;
    switch (MONARCH_WORD_STATE(monarch_entries(c)[id].word)) {
    case MONARCH_FILLING:
        return find_filling(p, id, job);
    case MONARCH_ABSENT:
    case MONARCH_WANTED:
        if (!p->grant.holds)
            return MONARCH_NOT_YET;
        *job = place(p, c, id);
        return *job ? MONARCH_TAKEN : MONARCH_REFUSED;
    default:
        return MONARCH_TAKEN;
    }
}

int monarch_asks_policy(struct pool *p, uint64_t id) {
    return monarch_set_bit(&p->shared.clients->wanted, id);
}
