/* The parallel file system. Nodes that wait for it are its clients: n of them get t(n) together,
 * and each the same (NoPFS 4). What a node has asked for is served in the order of its use.
 * Requests that nobody waits for are served when there are no others, by the same law. */
#ifndef MONARCH_SIM_PFS_H
#define MONARCH_SIM_PFS_H

#include "heap.h"
#include "simulator.h"

/* The turn of what nobody waits for. */
#define PFS_LAST UINT64_MAX

struct request {
    uint64_t turn, number; /* the lower first; then who came first */
    double bytes, asked;
    uint32_t node, who;
};

/* The requests of one kind. While they are served, each client gets the same number of bytes: the
 * `clock`. A client is in `ends` with the clock's reading at which its present request is over. */
struct share {
    double clock;
    struct heap ends;
    struct request *request; /* nodes x most; the first is served */
    uint32_t *n;             /* nodes */
    double *bytes;           /* nodes: asked for and not over */
    double *end;             /* nodes: the clock when the first is over */
};

struct pfs {
    const struct monarch_sim_job *job;
    struct share share[2]; /* waited for, and not */
    uint32_t most;         /* requests of a node at a time */
    uint64_t numbers;
    double since, busy;
    double *link_free; /* nodes: when what was given so far has come over the own link [s] */
};

int pfs_open(struct pfs *p, const struct monarch_sim_job *job, uint32_t most);
void pfs_close(struct pfs *p);

void pfs_ask(struct pfs *p, double now, uint64_t turn, uint32_t node, uint32_t who, double bytes);
/* When the next request is over; infinity for none. */
double pfs_next(const struct pfs *p);
/* Takes it, at that time; *end is when its node has it, which is later on a slow link. */
struct request pfs_take(struct pfs *p, double now, double *end);
/* When `bytes` asked for at `now` would be there, if nothing more came. */
double pfs_guess(const struct pfs *p, double now, uint32_t node, double bytes);

#endif
