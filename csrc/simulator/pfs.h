/* The parallel file system. Its clients are the nodes whose requests it serves now. With n clients,
 * its total rate is t(n), and each client gets an equal part of it (NoPFS, section 4). There are
 * two kinds of request: those for which a rank waits, and all others. While there is a request of
 * the first kind, all requests of the second kind wait. The requests of one node are served in the
 * order in which the node uses the files. */
#pragma once

#include "simulator/heap.h"
#include "simulator/simulator.h"

/* Priority of a request for which no rank waits. */
#define PFS_LAST UINT64_MAX
#define PFS_NONE UINT32_MAX

/* A request. Each asker (see heap.h) has at most one request at a time. */
struct request {
    /* Among a node's requests of one kind, the one with the smallest `priority` is served first. If
     * priorities are equal, this is the earliest request, which has the smallest `number`. */
    uint64_t priority, number;
    double bytes, left, asked;
    /* next: the next request of the same node and kind; PFS_NONE after the last one */
    uint32_t node, who, next;
};

/* The requests of one kind: those for which a rank waits, or all others. Clients that are served at
 * the same time receive bytes at the same rate. So `clock` measures time in bytes: the bytes that a
 * client would have received by now if it had always been served. For each client, `ends` has the
 * value of `clock` at which its current request ends. */
struct share {
    double clock;
    struct heap ends;
    /* for each node: the asker whose request is served now, or PFS_NONE. The request's field `next`
     * leads to the node's next request. */
    uint32_t *first;
    /* for each node: total size of the requests that wait behind the first request */
    double *waiting;
    double *end; /* for each node: the value of `clock` at which the first request ends */
};

struct pfs {
    const struct monarch_sim_job *job;
    struct share share[2];   /* element 0: requests for which a rank waits; element 1: all others */
    struct request *request; /* for each asker */
    uint64_t numbers;
    double since, busy;
    /* for each node: the time [s] at which all bytes that the file system has sent to it so far
     * will have arrived over its link */
    double *link_free;
};

/* Returns 1, or 0 if memory is exhausted. askers: number of askers, which are numbered from 0. */
int pfs_open(struct pfs *p, const struct monarch_sim_job *job, uint32_t askers);
void pfs_close(struct pfs *p);

void pfs_ask(struct pfs *p, double now, uint64_t priority, uint32_t node, uint32_t who,
             double bytes);
/* Lowers the priority value of the request of `who` to `priority`, so that the request is served
 * earlier. Call this if another asker, whose priority is `priority`, needs the same bytes. Does
 * nothing if the request's value is not larger, or if the request is already being served for a
 * waiting rank. */
void pfs_hurry(struct pfs *p, double now, uint64_t priority, uint32_t who);
/* Returns the time at which the next request ends, or infinity if there is no request. */
double pfs_next(const struct pfs *p);
/* Removes and returns the request that ends first. `now` must be the time at which it ends. Sets
 * *end to the time at which the bytes have arrived at the node. If the node's link is slow, this is
 * later than `now`. */
struct request pfs_take(struct pfs *p, double now, double *end);
/* Returns the time at which `bytes` requested at `now` would arrive if nothing else was requested
 * in the meantime. */
double pfs_guess(const struct pfs *p, double now, uint32_t node, double bytes);
