/* Storage classes and links. A class serves its requests one after another, in the order of their
 * arrival. So does a link, unless the job's `fair_links` is 1: then it serves all its transfers at
 * the same time. No class and no link exceeds its rate. */
#pragma once

#include "simulator/links.h"

struct machine {
    const struct monarch_sim_job *job;
    /* for each node and class: the time [s] at which the class will have served all requests made
     * so far */
    double *class_free;
    /* for each node: the time [s] at which the link into it, or out of it, will have carried all
     * bytes requested so far */
    double *in_free, *out_free;
    struct links links; /* used only if the job's `fair_links` is 1 */
};

/* Returns 1, or 0 if memory is exhausted. askers: number of askers (see heap.h). */
int machine_open(struct machine *m, const struct monarch_sim_job *job, uint32_t askers);
void machine_close(struct machine *m);

/* Returns the time at which `bytes` will have arrived if they are requested at `now`. take = 1:
 * requests the bytes, so that they occupy the class and all links on the way. take = 0: only
 * computes the time. */
double machine_local(struct machine *m, double now, uint32_t node, uint32_t cls, double bytes,
                     int take);
double machine_remote(struct machine *m, double now, uint32_t node, uint32_t holder, uint32_t cls,
                      double bytes, int take);
/* Returns the time at which `bytes` from node `from` will have arrived at node `to` over the links.
 * If the job's `fair_links` is 1, this is only an estimate, and `take` has no effect. */
double machine_forward(struct machine *m, double now, uint32_t from, uint32_t to, double bytes,
                       int take);
/* Writes to a class. A write occupies the class in the same manner as a read. */
void machine_write(struct machine *m, double now, uint32_t node, uint32_t cls, double bytes);
