/* Start-time fair queueing: decides which of the waiting readers is served next. A rank is a
 * training process of this node, together with its child processes. Each rank may have a share,
 * which is a number. Ranks are served in proportion to their shares, and no rank is starved. While
 * any reader waits, some reader is served. Each waiting reader has written a demand into a slot.
 * The search for the next reader visits the slots one after another. A reader that belongs to no
 * rank is served when the search reaches its slot. */
#pragma once

#include "shared/catalog.h"

struct fair_queue {
    /* for each of MONARCH_RANKS ranks, its share; 0: the rank's readers are treated like readers
     * that belong to no rank */
    const uint32_t *share;
    uint64_t now;                /* virtual time: the due time of the rank that was served last */
    uint64_t due[MONARCH_RANKS]; /* virtual time at which each rank is due next */
    /* for each rank: the slot at which the search for the rank's next reader begins. The reader of
     * this rank that was served last is in the slot before it. */
    uint8_t next[MONARCH_RANKS];
};

/* Returns the rank if it has a share, else 0, which means no rank. */
static inline unsigned monarch_rank_in(const struct fair_queue *q, unsigned rank) {
    return q->share[rank] ? rank : 0;
}
/* Returns the virtual time at which the rank is due. A rank is never due earlier than `now`: a rank
 * without waiting readers must not save up service for later. */
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
 * demand slots one after another. A slot's reader without a rank is yielded at once. At a slot
 * whose reader has a rank, the iterator yields a reader of the rank that is due first. That may be
 * another rank. */
struct line {
    const struct fair_queue *queue;
    /* By demand slot. demand: the demand in the slot. taken: the demand that a thread already
     * serves. A reader is skipped if its slot has the same value in both arrays. */
    const uint64_t *demand, *taken;
    unsigned first, passed; /* slots [first, first + passed) have been looked at */
    /* length: number of readers in `of_ranks`. is_known: whether `of_ranks` was filled with all
     * waiting readers that have ranks. That happens when the iterator meets the first such
     * reader. */
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
