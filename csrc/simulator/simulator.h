/* Simulates a training job on nodes, storage classes, links and a parallel file system, event by
 * event. Python decides where files are stored and from where accesses read them
 * (monarch_py/policies); the simulator computes how long that takes. docs/simulator.md describes
 * the model and its limits. */
#pragma once

#ifndef MONARCH_CDEF
#include <stdint.h>
#endif

/* Number of epochs whose accesses the simulation knows at a time. With two epochs, samples can be
 * prefetched up to the end of the next epoch. */
enum { MONARCH_SIM_EPOCHS = 2 };

enum monarch_sim_from {
    /* Reading the sample takes no time: the job's `is_free` is 1, or the node is already reading
     * the file for another sample. */
    MONARCH_SIM_STAGING,
    MONARCH_SIM_LOCAL,
    MONARCH_SIM_REMOTE,
    MONARCH_SIM_PFS,
    MONARCH_SIM_FROMS
};

/* The job, which does not change. The caller owns the arrays, which must outlive the simulation.
 * Comments on arrays begin with the index: an array "for each node and class" has nodes x classes
 * elements. Units are bytes, seconds and bytes/s. */
struct monarch_sim_job {
    /* most_ranks: the largest number of ranks of a node */
    uint32_t nodes, most_ranks, classes, files;
    const uint32_t *ranks; /* for each node: number of ranks */
    /* steps: number of steps of an epoch; batch: number of samples that a rank uses in a step */
    uint32_t epochs, steps, batch;
    const int64_t *sizes; /* for each file */
    /* for each node and class: rate of reads, of all threads of the class together */
    const double *read_rate;
    /* for each node and class: rate of writes, of all threads of the class together */
    const double *write_rate;
    const uint32_t *threads; /* for each class: number of threads */
    const double *staging;   /* for each node: capacity of the staging buffer */
    const double *network;   /* for each node: rate of the node's link, in each direction */
    /* for each node: the highest rate at which the node can read from the file system */
    const double *pfs_link;
    /* for each number of nodes that read at the same time (0 to `nodes`): the file system's total
     * rate */
    const double *pfs;
    /* for each node. compute: rate of one rank; preprocess: rate of one preprocessing thread */
    const double *compute, *preprocess;
    /* The planned copies. Each node makes the copies of one class in the order of these arrays. */
    uint64_t copies;
    const int32_t *copy_node, *copy_file;
    const int8_t *copy_class;
    /* For each copy: when it should exist, as a position in the access sequence of the node that
     * makes it. A node cannot see which copies other nodes have. So it requests another node's copy
     * only after it has passed this position in its own sequence. NULL: every node always knows
     * which copies exist. */
    const int64_t *copy_due;
    /* for each file: its owner. Only the owner reads the file from the file system; the other nodes
     * get it from the owner. -1: no owner, so each node reads the file from the file system. NULL:
     * no file has an owner. */
    const int32_t *owner;
    uint8_t stages;       /* 1: samples are prefetched into the staging buffer */
    uint8_t fills;        /* 1: each storage class has threads that make its copies */
    uint8_t fills_first;  /* 1: the copies are made before the first step */
    uint8_t reads_remote; /* 1: nodes read the copies of other nodes */
    /* 1: a node reads a file from the file system although there is a copy, if that is faster */
    uint8_t weighs_pfs;
    uint8_t is_free; /* 1: reading takes no time */
    /* 1: all transfers over a link share the link's rate; 0: a link carries one transfer at a
     * time */
    uint8_t fair_links;
    uint32_t checkpoint_steps; /* 0: no checkpoints are written */
    double checkpoint_bytes;   /* number of bytes that each rank writes at a checkpoint */
};

/* The results. The caller owns the arrays, and sets all elements to 0 before the simulation.
 * Comments on arrays begin with the index, like those of struct monarch_sim_job. */
struct monarch_sim_result {
    double first_step; /* when the first step began [s] */
    double *epoch_end; /* for each epoch: when the epoch ended [s] */
    /* for each epoch and origin (enum monarch_sim_from): total size of the samples from this
     * origin */
    double *bytes;
    /* for each node and origin: total size of the node's samples from this origin */
    double *node_bytes;
    /* for each epoch: number of bytes read from copies that were made before it, where only each
     * file's first read in the epoch counts */
    double *reused;
    /* for each node and rank (nodes x most_ranks): total time for which the rank has waited for
     * samples [s] */
    double *stall;
    /* for each node and rank: total time for which the rank has computed [s] */
    double *rank_compute;
    /* for each node: number of bytes that the node has read from the file system to make copies or
     * to serve other nodes */
    double *filled;
    double *pfs_bytes; /* for each epoch: total number of bytes read from the file system */
    /* for each epoch: number of samples that were ready when their rank needed them */
    uint64_t *ready;
    uint64_t *imbalanced; /* for each epoch: number of imbalanced steps (see `imbalance`) */
    /* Set by the caller. A step is imbalanced if its slowest rank takes more than this multiple of
     * the time of its fastest rank. */
    double imbalance;
    double pfs_busy; /* total time in which the file system has served requests [s] */
};

/* Makes a simulation. Returns NULL if memory is exhausted. */
struct monarch_sim *monarch_sim_new(const struct monarch_sim_job *job,
                                    struct monarch_sim_result *result);
void monarch_sim_free(struct monarch_sim *sim);

/* The accesses of an epoch. The arrays, except `threads`, have the shape nodes x steps x most_ranks
 * x batch. If a node has fewer ranks than most_ranks, its remaining elements are -1. */
struct monarch_sim_epoch {
    const int32_t *order; /* the file of each access; -1: no sample */
    /* `holder`, `cls`, `into`, `down`: NULL if the copies are those of the job (`copy_file`).
     * Otherwise, an access reads its file from the class `cls` of the node `holder`. If `holder` is
     * -1, it reads from the file system. Then the file is written to the storage classes `into`,
     * `into` + 1, ..., `down` of one node. This is the file's owner, or, if the file has no owner,
     * the node that makes the access. If `into` is 0, no node writes the file. */
    const int32_t *holder;
    const int8_t *cls, *into, *down;
    /* for each node, step and rank (nodes x steps x most_ranks): how many of the node's staging
     * threads should fetch the rank's samples of the step. NULL: the ranks of a node share no
     * staging threads. */
    const int32_t *threads;
    /* number of bytes that the access reads from the file system in addition to the sample; NULL: 0
     * for all accesses */
    const int64_t *redundant;
};

/* Gives the next epoch to the simulation. Its arrays are not copied, so the caller must keep them
 * until it has given MONARCH_SIM_EPOCHS more epochs. Returns 1, or 0 if memory is exhausted. */
int monarch_sim_give(struct monarch_sim *sim, const struct monarch_sim_epoch *epoch);
/* Runs the simulation. Returns 1 if the caller must give the next epoch (monarch_sim_give) and call
 * again. Returns 0 at the end, and -1 on a deadlock, which would be a bug of the simulator. */
int monarch_sim_run(struct monarch_sim *sim);
