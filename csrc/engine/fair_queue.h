/* The order in which the ranks of a node are served. Ranks are served in proportion to their
 * shares, no rank is starved, and as long as any reader waits, some reader is served. A reader that
 * belongs to no rank is served when the search reaches its slot. */
#pragma once

#include "shared/catalog.h"

struct fair_queue {
    const uint32_t *share; /* (MONARCH_RANKS,); 0: the rank's readers count as readers of no rank */
    uint64_t now;          /* virtual time: when the rank served last was due */
    uint64_t due[MONARCH_RANKS]; /* virtual time at which each rank is due next */
    uint8_t next[MONARCH_RANKS]; /* per rank, the slot after that of its reader served last */
};

/* Returns the rank if it has a share, else 0: no rank. */
static inline unsigned monarch_rank_in(const struct fair_queue *q, unsigned rank) {
    return q->share[rank] ? rank : 0;
}
/* Returns the virtual time at which the rank is due: `now` at the earliest, because a rank without
 * waiting readers saves up no service. */
static inline uint64_t monarch_due(const struct fair_queue *q, unsigned rank) {
    return q->due[rank] > q->now ? q->due[rank] : q->now;
}
void monarch_served(struct fair_queue *q, unsigned rank);

/* A reader that waits. */
struct waiting {
    uint64_t demand, due;
    uint8_t place;  /* slot of the demand */
    uint8_t behind; /* distance [slots] from the reader of its rank served last */
    uint8_t rank;   /* 0: no rank */
};

/* Iterator over the waiting readers in the order in which they are to be served. It goes through
 * the demand slots; where it meets a reader of any rank, it yields, in that reader's place, the
 * reader whose rank is due first. */
struct line {
    const struct fair_queue *queue;
    const uint64_t *demand, *taken; /* per slot; a demand that equals `taken` does not wait */
    unsigned first, passed;         /* slots [first, first + passed) have been looked at */
    unsigned length; /* of `of_ranks`, which is filled when the first reader of a rank is met */
    int is_known;
    struct waiting of_ranks[MONARCH_DEMANDS];
};

void monarch_line_up(struct line *l, const struct fair_queue *q, const uint64_t *demand,
                     const uint64_t *taken, unsigned first);
int monarch_next_waiting(struct line *l, struct waiting *w); /* returns 0 at the end */
/* Charges the reader's rank for one service; returns the slot at which the next scan starts. */
unsigned monarch_served_reader(const struct line *l, struct fair_queue *q, const struct waiting *w);
