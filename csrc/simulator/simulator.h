/* Simulates a training job on nodes, storage classes, links and a parallel file system, event by
 * event. Python decides where each file is stored and from where each access reads it
 * (monarch_py/policies); the simulator computes how long that takes. docs/simulator.md describes
 * the model and its limits. */
#pragma once

#ifndef MONARCH_CDEF
#include <stdint.h>
#endif

/* The caller gives epochs in advance. This is the number of epochs that the simulation has at a
 * time: prefetching can run ahead to the end of the next epoch. */
enum { MONARCH_SIM_EPOCHS = 2 };

enum monarch_sim_from {
    /* The sample is in the staging buffer already, or reading takes no time because the job's
     * `is_free` is 1. A sample is in the buffer already if a read for another sample has also
     * brought this sample. */
    MONARCH_SIM_STAGING,
    MONARCH_SIM_LOCAL,
    MONARCH_SIM_REMOTE,
    MONARCH_SIM_PFS,
    MONARCH_SIM_FROMS
};

/* The job, which does not change. The caller owns the arrays, which must outlive the simulation.
 * Comments on arrays begin with the shape. Units are bytes, seconds and bytes/s. */
struct monarch_sim_job {
    /* most_ranks: number of ranks of the node that has the most ranks */
    uint32_t nodes, most_ranks, classes, files;
    const uint32_t *ranks; /* nodes */
    /* steps: number of steps of an epoch; batch: number of samples that a rank uses in a step */
    uint32_t epochs, steps, batch;
    const int64_t *sizes;     /* files */
    const double *read_rate;  /* nodes x classes: rate of a class, which its threads share */
    const double *write_rate; /* nodes x classes */
    const uint32_t *threads;  /* classes */
    const double *staging;    /* nodes: capacity of the staging buffer */
    const double *network;    /* nodes: rate of each link, in each direction */
    /* nodes: the highest rate at which each node can read from the file system */
    const double *pfs_link;
    const double *pfs; /* nodes + 1: element n is the file system's total rate with n clients */
    /* nodes. compute: rate of one rank; preprocess: rate of one preprocessing thread */
    const double *compute, *preprocess;
    /* The planned copies. The copies of one node and class are in the order in which they are
     * made. */
    uint64_t copies;
    const int32_t *copy_node, *copy_file;
    const int8_t *copy_class;
    /* For each copy: a position in the access sequence of the node that makes the copy. The copy
     * should exist when this node has reached the position. Other nodes do not see which copies
     * exist: another node asks for the copy only after it has passed the same position in its own
     * access sequence. NULL: every node sees at any time which copies exist. */
    const int64_t *copy_due;
    /* files: the only node that reads the file from the file system and sends it to the nodes that
     * want it; -1: each node that wants the file reads it. NULL: -1 for all files. */
    const int32_t *owner;
    uint8_t stages;       /* 1: samples are prefetched into the staging buffer */
    uint8_t fills;        /* 1: each storage class has threads that make its copies */
    uint8_t fills_first;  /* 1: the copies are made before the first step */
    uint8_t reads_remote; /* 1: nodes read the copies of other nodes */
    /* 1: a file with a copy is nevertheless read from the file system if that is faster */
    uint8_t weighs_pfs;
    uint8_t is_free; /* 1: reading takes no time */
    /* 1: all transfers of a link share its rate; 0: a link carries one transfer after the other */
    uint8_t fair_links;
    uint32_t checkpoint_steps; /* 0: no checkpoints are written */
    double checkpoint_bytes;   /* bytes that each rank writes */
};

/* The results. The caller owns the arrays, which are all zero at first. Comments on arrays begin
 * with the shape. */
struct monarch_sim_result {
    double first_step; /* when the first step began [s] */
    double *epoch_end; /* epochs [s] */
    /* epochs x MONARCH_SIM_FROMS: number of bytes of samples from each origin (enum
     * monarch_sim_from) */
    double *bytes;
    double *node_bytes;   /* nodes x MONARCH_SIM_FROMS */
    double *reused;       /* epochs: bytes read from copies that an earlier epoch made */
    double *stall;        /* nodes x most_ranks: time that a rank waited for samples [s] */
    double *rank_compute; /* nodes x most_ranks [s] */
    /* nodes: number of bytes that each node has read from the file system for copies and for other
     * nodes */
    double *filled;
    double *pfs_bytes; /* epochs: all bytes read from the file system */
    uint64_t *ready;   /* epochs: number of samples that were ready when their rank needed them */
    uint64_t *imbalanced; /* epochs: number of imbalanced steps, see `imbalance` */
    /* set by the caller: a step counts as imbalanced if the time of its slowest rank is more than
     * this multiple of the time of its fastest rank */
    double imbalance;
    double pfs_busy; /* [s] */
};

/* Makes a simulation. Returns NULL if memory is exhausted. */
struct monarch_sim *monarch_sim_new(const struct monarch_sim_job *job,
                                    struct monarch_sim_result *result);
void monarch_sim_free(struct monarch_sim *sim);

/* The accesses of an epoch. Arrays are nodes x steps x most_ranks x batch; if a node has no such
 * rank, the element is -1. */
struct monarch_sim_epoch {
    const int32_t *order; /* files; -1 for no sample */
    /* `holder`, `cls`, `into` and `down` are NULL if the copies are fixed. If copies come and go,
     * an access reads its file from the class `cls` of the node `holder`. If `holder` is -1, it
     * reads from the file system. After the read, one node writes the file to its classes from
     * `into` to `down`; 0: to none. This node is the file's owner, or, if the file has no owner,
     * the node that makes the access. */
    const int32_t *holder;
    const int8_t *cls, *into, *down;
    /* nodes x steps x most_ranks: number of staging threads that should fetch the samples of a rank
     * in a step. NULL if the ranks of a node do not share staging threads. */
    const int32_t *threads;
    /* number of bytes that the access reads from the file system in addition to the sample; NULL: 0
     * for all accesses */
    const int64_t *redundant;
};

/* Hands the next epoch to the simulation. The epoch's arrays are not copied: the caller must keep
 * them until it has handed over MONARCH_SIM_EPOCHS more epochs. Returns 1, or 0 if memory is
 * exhausted. */
int monarch_sim_give(struct monarch_sim *sim, const struct monarch_sim_epoch *epoch);
/* Runs the simulation. Returns 1 if the caller must hand over the next epoch and call again, 0 at
 * the end, and -1 on a deadlock, which would be a bug of the simulator. */
int monarch_sim_run(struct monarch_sim *sim);
