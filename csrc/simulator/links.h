/* Links that transfers share, as TCP connections do in a fluid model. The rates are max-min fair
 * (Bertsekas and Gallager, Data Networks, 6.5.2). Each change costs time in proportion to all
 * transfers under way, so that this model suits some tens of nodes. */
#pragma once

#include "simulator/simulator.h"

/* An asker has one transfer at a time. */
struct transfer {
    uint32_t who, from, to;
    double left;     /* [bytes], at `since` */
    double rate;     /* [bytes/s] */
    double earliest; /* it does not arrive before, however fast the links are [s] */
};

struct links {
    const struct monarch_sim_job *job;
    struct transfer *transfer; /* the transfers under way */
    double *room;              /* 2 x nodes: rate that each link, out, then in, has left */
    uint32_t *users;           /* 2 x nodes: transfers on each link without a rate yet */
    uint32_t n, next;          /* next: the transfer that is over first */
    int has_rates;
    double since, end; /* end: when `next` is over */
};

/* askers : how many can ask */
int links_open(struct links *l, const struct monarch_sim_job *job, uint32_t askers);
void links_close(struct links *l);

void links_ask(struct links *l, double now, struct transfer asked);
/* Returns when the next transfer is over; infinity for none. */
double links_next(struct links *l);
/* Takes out the next transfer, at the time when it is over. */
struct transfer links_take(struct links *l, double now);
/* Returns when `bytes` asked for at `now` would be there, if no transfer came or went. */
double links_guess(const struct links *l, double now, uint32_t from, uint32_t to, double bytes);
