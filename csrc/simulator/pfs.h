/* The parallel file system. Nodes that wait for it are its clients: n of them get t(n) together,
 * and each an equal part of that (NoPFS, section 4). A node's requests are served in the order in
 * which the node uses the files. Requests that nobody waits for are served when there are no
 * others, by the same law. */
#pragma once

#include "simulator/heap.h"
#include "simulator/simulator.h"

/* The priority of a request that nobody waits for. */
#define PFS_LAST UINT64_MAX
#define PFS_NONE UINT32_MAX

/* An asker has one request at a time. */
struct request {
    /* The smallest priority is served first; of equals, the smallest number. */
    uint64_t priority, number;
    double bytes, left, asked;
    uint32_t node, who, next; /* next: of the same node and kind, PFS_NONE behind the last */
};

/* The requests of one kind: those that somebody waits for, or all others. While they are served,
 * each client gets the same number of bytes, which `clock` counts. `ends` has for each client the
 * clock's reading at which its present request is over. */
struct share {
    double clock;
    struct heap ends;
    uint32_t *first; /* nodes: the request served now; its `next` leads to the others, in the order
                        of service */
    double *waiting; /* nodes: the bytes of the requests behind the first */
    double *end;     /* nodes: the clock's reading when the first is over */
};

struct pfs {
    const struct monarch_sim_job *job;
    struct share share[2];   /* [0] requests that somebody waits for, [1] all others */
    struct request *request; /* by the asker's number */
    uint64_t numbers;
    double since, busy;
    double *link_free; /* nodes: when all bytes given so far have come over its own link [s] */
};

/* askers : how many can ask; they are numbered from 0 */
int pfs_open(struct pfs *p, const struct monarch_sim_job *job, uint32_t askers);
void pfs_close(struct pfs *p);

void pfs_ask(struct pfs *p, double now, uint64_t priority, uint32_t node, uint32_t who,
             double bytes);
/* Moves a request forward because another asker waits for the same bytes: its priority becomes the
 * smaller one of the two. */
void pfs_hurry(struct pfs *p, double now, uint64_t priority, uint32_t who);
/* Returns when the next request is over; infinity for none. */
double pfs_next(const struct pfs *p);
/* Takes out the next request, at the time when it is over; *end is when its node has the bytes,
 * which is later on a slow link. */
struct request pfs_take(struct pfs *p, double now, double *end);
/* Returns when `bytes` asked for at `now` would be there, if no more requests came. */
double pfs_guess(const struct pfs *p, double now, uint32_t node, double bytes);
