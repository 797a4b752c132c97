/* Links between nodes. All transfers over a link share its rate, as TCP connections do in a fluid
 * model. The rates are max-min fair (Bertsekas and Gallager, Data Networks, 6.5.2). Each time a
 * transfer begins or ends, all rates are computed anew. So the model is suitable for a few tens of
 * nodes; with many transfers, it is slow. */
#pragma once

#include "simulator/simulator.h"

/* A transfer. Each asker (see heap.h) has at most one transfer at a time. */
struct transfer {
    uint32_t who, from, to;
    double left;     /* number of bytes not moved yet at the time `since` (struct links) */
    double rate;     /* [bytes/s] */
    double earliest; /* the transfer cannot end before this time [s], even over fast links */
};

struct links {
    const struct monarch_sim_job *job;
    struct transfer *transfer; /* the current transfers */
    /* for each link: the part of its rate that no transfer has got yet. First come the `nodes`
     * links out of the nodes, then the `nodes` links into the nodes. */
    double *room;
    /* for each link: number of transfers over the link that have no rate yet */
    uint32_t *users;
    uint32_t n, next; /* next: the transfer that ends first */
    int has_rates;
    double since, end; /* end: when the transfer `next` ends */
};

/* Returns 1, or 0 if memory is exhausted. askers: number of askers (see heap.h). */
int links_open(struct links *l, const struct monarch_sim_job *job, uint32_t askers);
void links_close(struct links *l);

void links_ask(struct links *l, double now, struct transfer asked);
/* Returns the time at which the next transfer ends, or infinity if there is no transfer. */
double links_next(struct links *l);
/* Removes the transfer that ends first, and returns it. `now` must be the time at which the
 * transfer ends. */
struct transfer links_take(struct links *l, double now);
/* Returns the time at which `bytes` requested at `now` would arrive if no other transfer began or
 * ended in the meantime. */
double links_guess(const struct links *l, double now, uint32_t from, uint32_t to, double bytes);
