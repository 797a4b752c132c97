/* In which order the ranks of a node are served: each as often as its share says, none left out,
 * and as long as somebody waits somebody is served. Who belongs to no rank keeps his place. */
#ifndef MONARCH_TURNS_H
#define MONARCH_TURNS_H

#include "shared/catalog.h"

struct turns {
    const uint32_t *share; /* (MONARCH_RANKS,); 0: this rank is none of those that take turns */
    uint64_t now;          /* when whoever was served last had its turn, */
    uint64_t due[MONARCH_RANKS]; /* and when each has its next one */
    uint8_t next[MONARCH_RANKS]; /* its readers take turns too: behind the one served last */
};

/* The rank, if it takes turns. */
static inline unsigned monarch_rank_in(const struct turns *t, unsigned rank) {
    return t->share[rank] ? rank : 0;
}
/* A rank that had nothing to wait for has saved up nothing. */
static inline uint64_t monarch_due(const struct turns *t, unsigned rank) {
    return t->due[rank] > t->now ? t->due[rank] : t->now;
}
void monarch_served(struct turns *t, unsigned rank);

/* A reader that waits. */
struct waiting {
    uint64_t demand, due;
    uint8_t place;  /* of the demand */
    uint8_t behind; /* so many places behind the one of its rank that was served last */
    uint8_t rank;   /* 0: of none */
};

/* Those that wait, in the order in which they are to be served: place by place, and where a rank's
 * reader waits, the one of all ranks whose turn is due first has that place. */
struct line {
    const struct turns *turns;
    const uint64_t *demand, *taken; /* at the places; those that are taken do not wait */
    unsigned first, passed;         /* from `first` on so many places have been looked at */
    unsigned length;                /* of ranks: known when the first of them is met */
    int is_known;
    struct waiting of_ranks[MONARCH_DEMANDS];
};

void monarch_line_up(struct line *l, const struct turns *t, const uint64_t *demand,
                     const uint64_t *taken, unsigned first);
int monarch_next_waiting(struct line *l, struct waiting *w); /* whether there is one */
/* He has been served; where the next line begins. */
unsigned monarch_served_reader(const struct line *l, struct turns *t, const struct waiting *w);

#endif
