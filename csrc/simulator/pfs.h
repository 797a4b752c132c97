/* The parallel file system. Nodes that wait for it are its clients: n of them get t(n) together,
 * and each the same (NoPFS 4). What a node has asked for is served in the order of its use.
 * Requests that nobody waits for are served when there are no others, by the same law. */
#pragma once

#include "simulator/heap.h"
#include "simulator/simulator.h"

/* The priority of what nobody waits for. */
#define PFS_LAST UINT64_MAX
#define PFS_NONE UINT32_MAX

/* An asker has one request at a time. */
struct request {
    uint64_t priority,
        number; /* the smallest priority is served first; of equals, the smallest number */
    double bytes, left, asked;
    uint32_t node, who, next; /* next: of the same node and kind, PFS_NONE behind the last */
};

/* The requests of one kind. While they are served, each client gets the same number of bytes: the
 * `clock`. A client is in `ends` with the clock's reading at which its present request is over. */
struct share {
    double clock;
    struct heap ends;
    uint32_t *first; /* nodes: who is served now; behind it the others, in the order of service */
    double *waiting; /* nodes: bytes of these others */
    double *end;     /* nodes: the clock when the first is over */
};

struct pfs {
    const struct monarch_sim_job *job;
    struct share share[2];   /* [0] waited for, [1] not */
    struct request *request; /* by who asks */
    uint64_t numbers;
    double since, busy;
    double *link_free; /* nodes: when what was given so far has come over the own link [s] */
};

/* askers : how many can ask, numbers from 0 */
int pfs_open(struct pfs *p, const struct monarch_sim_job *job, uint32_t askers);
void pfs_close(struct pfs *p);

void pfs_ask(struct pfs *p, double now, uint64_t priority, uint32_t node, uint32_t who,
             double bytes);
/* Moves a request forward when another asker waits for the same: it is served with
 * the lower of both priorities. */
void pfs_hurry(struct pfs *p, double now, uint64_t priority, uint32_t who);
/* When the next request is over; infinity for none. */
double pfs_next(const struct pfs *p);
/* Takes out the next request, at the time when it is over; *end is when its node has the bytes,
 * which is later on a slow link. */
struct request pfs_take(struct pfs *p, double now, double *end);
/* When `bytes` asked for at `now` would be there, if nothing more came. */
double pfs_guess(const struct pfs *p, double now, uint32_t node, double bytes);
