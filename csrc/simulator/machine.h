/* Storage classes and links. Requests are served first come, first served; only over fair links are
 * all transfers served at the same time. No class and no link gives more than its rate. */
#pragma once

#include "simulator/links.h"

struct machine {
    const struct monarch_sim_job *job;
    double *class_free;         /* nodes x classes: when what was asked for so far is served [s] */
    double *in_free, *out_free; /* nodes: when a link has carried all that was asked for so far
                                   [s] */
    struct links links;         /* with fair_links */
};

/* askers : how many can have a transfer over fair links */
int machine_open(struct machine *m, const struct monarch_sim_job *job, uint32_t askers);
void machine_close(struct machine *m);

/* Returns when `bytes` asked for at `now` are there. With `take`, they occupy the class and the
 * links on their way. */
double machine_local(struct machine *m, double now, uint32_t node, uint32_t cls, double bytes,
                     int take);
double machine_remote(struct machine *m, double now, uint32_t node, uint32_t holder, uint32_t cls,
                      double bytes, int take);
/* Returns when `bytes` have come over the links; over fair links this is a guess that occupies
 * nothing. */
double machine_forward(struct machine *m, double now, uint32_t from, uint32_t to, double bytes,
                       int take);
/* Writes to a class. A write occupies the class as a read does. */
void machine_write(struct machine *m, double now, uint32_t node, uint32_t cls, double bytes);
