/* Start-time fair queueing: decides which of the waiting readers is served next. A rank is a
 * training process of this node, together with its child processes. Ranks with waiting readers are
 * served in proportion to their shares. A share is a number that the daemon sets for a rank. No
 * rank is starved: while any reader waits, some reader is served. Each waiting reader has written a
 * demand into a slot. The search for the next reader visits the slots in rotation. A reader without
 * a rank is served when the search reaches its slot. */
#pragma once

#include "shared/catalog.h"

struct fair_queue {
    /* for each of MONARCH_RANKS ranks, its share; 0: the rank's readers are treated like readers
     * that belong to no rank */
    const uint32_t *share;
    uint64_t now;                /* virtual time: the due time of the rank that was served last */
    uint64_t due[MONARCH_RANKS]; /* virtual time at which each rank is due next */
    /* By rank: the slot at which the search for the rank's next reader begins. It is the slot after
     * the rank's reader that was served last. */
    uint8_t next[MONARCH_RANKS];
};

/* Returns the rank if it has a share, else 0, which means no rank. */
static inline unsigned monarch_rank_in(const struct fair_queue *q, unsigned rank) {
    return q->share[rank] ? rank : 0;
}
/* Returns the virtual time at which the rank is due, but at least `now`. Otherwise, a rank that had
 * no waiting readers for some time would later be served too often. */
static inline uint64_t monarch_due(const struct fair_queue *q, unsigned rank) {
    return q->due[rank] > q->now ? q->due[rank] : q->now;
}
void monarch_served(struct fair_queue *q, unsigned rank);

/* A reader that waits. */
struct waiting {
    uint64_t demand, due;
    uint8_t place;  /* slot of the demand */
    uint8_t behind; /* distance in slots from the rank's `next` (struct fair_queue) to `place` */
    uint8_t rank;   /* 0: no rank */
};

/* Iterator over the waiting readers, in the sequence in which they are to be served. It visits the
 * demand slots in rotation. If a slot's reader has no rank, the iterator yields this reader. If the
 * reader has a rank, the iterator yields a reader of the rank that is due first. This may be a
 * reader in another slot. */
struct line {
    const struct fair_queue *queue;
    /* By demand slot. demand: the demand in the slot. taken: the demand that a thread already
     * serves. If both values of a slot are equal, its reader is skipped. */
    const uint64_t *demand, *taken;
    unsigned first, passed; /* slots [first, first + passed) have been looked at */
    /* is_known: whether `of_ranks` was filled. When the iterator meets the first reader with a
     * rank, it puts all waiting readers with ranks into `of_ranks`. length: how many readers
     * `of_ranks` still contains. */
    unsigned length;
    int is_known;
    struct waiting of_ranks[MONARCH_DEMANDS];
};

void monarch_line_up(struct line *l, const struct fair_queue *q, const uint64_t *demand,
                     const uint64_t *taken, unsigned first);
/* Stores the next reader in *w. Returns 0 if there are no more readers. */
int monarch_next_waiting(struct line *l, struct waiting *w);
/* Call this when the reader `w` is served. Sets a later due time for the reader's rank. Returns the
 * slot at which the next search starts. */
unsigned monarch_served_reader(const struct line *l, struct fair_queue *q, const struct waiting *w);
