/* Simulates a training job on nodes, storage classes, links and a parallel file system, event by
 * event. Python decides what lies where and who reads what (monarch_py/policies); the simulator
 * says how long it takes. The model and what it leaves out: docs/simulator.md. */
#pragma once

#ifndef MONARCH_CDEF
#include <stdint.h>
#endif

/* Epochs that are known at a time: prefetching ends at the end of the epoch after the present
 * one. */
enum { MONARCH_SIM_EPOCHS = 2 };

enum monarch_sim_from {
    MONARCH_SIM_STAGING, /* costs nothing: every sample of a job that is free, and a sample that a
                            read for another sample brings */
    MONARCH_SIM_LOCAL,
    MONARCH_SIM_REMOTE,
    MONARCH_SIM_PFS,
    MONARCH_SIM_FROMS
};

/* The job, which does not change. Its arrays stay the caller's, and must outlive the simulation;
 * the comments begin with their shapes. Units are bytes, seconds, bytes/s. */
struct monarch_sim_job {
    uint32_t nodes, most_ranks, classes, files; /* most_ranks: of a node */
    const uint32_t *ranks;                      /* nodes */
    uint32_t epochs, steps, batch;              /* steps of an epoch, samples of a rank in a step */
    const int64_t *sizes;                       /* files */
    const double *read_rate;  /* nodes x classes: all threads of a class together */
    const double *write_rate; /* nodes x classes */
    const uint32_t *threads;  /* classes */
    const double *staging;    /* nodes: capacity of the staging buffer */
    const double *network;    /* nodes: each link, either way */
    const double *pfs_link;   /* nodes: the most that each gets of the file system */
    const double *pfs;        /* nodes + 1: the file system's rate by its number of clients */
    const double *compute, *preprocess; /* nodes: rate of a rank; rate of a thread */
    /* The copies. Those of one (node, class) are in the order in which they are filled. */
    uint64_t copies;
    const int32_t *copy_node, *copy_file;
    const int8_t *copy_class;
    /* For each copy, the access of its node by which the copy should be there. A node that has not
     * come as far in its own accesses does not ask the copy's node for the file. NULL: every node
     * knows which copies are there. */
    const int64_t *copy_due;
    /* files: the node that alone reads the file from the file system, and sends it on to the nodes
     * that want it; -1: each node that wants the file reads it. NULL: -1 for all files. */
    const int32_t *owner;
    uint8_t stages;       /* files are prefetched into the staging buffer */
    uint8_t fills;        /* the classes' threads make the copies */
    uint8_t fills_first;  /* the copies are made before the first step */
    uint8_t reads_remote; /* other nodes' copies are read */
    uint8_t weighs_pfs;   /* the file system is read if that is faster, though there is a copy */
    uint8_t is_free;      /* reading takes no time */
    uint8_t fair_links;   /* transfers share links instead of going over them one after the other */
    uint32_t checkpoint_steps; /* 0: none are written */
    double checkpoint_bytes;   /* of each rank */
};

/* What is measured. Arrays are the caller's, all zero at the beginning; the comments begin with
 * their shapes. */
struct monarch_sim_result {
    double first_step;    /* when the first step began [s] */
    double *epoch_end;    /* epochs [s] */
    double *bytes;        /* epochs x MONARCH_SIM_FROMS, by where a sample came from */
    double *node_bytes;   /* nodes x MONARCH_SIM_FROMS */
    double *reused;       /* epochs: bytes of files that a copy of an earlier epoch gave */
    double *stall;        /* nodes x most_ranks: time that a rank waited for samples [s] */
    double *rank_compute; /* nodes x most_ranks [s] */
    double *filled;       /* nodes: bytes from the file system for copies and for other nodes */
    double *pfs_bytes;    /* epochs: all that the file system gave */
    uint64_t *ready;      /* epochs: samples that were there when they were asked for */
    uint64_t *imbalanced; /* epochs: imbalanced steps, see imbalance */
    double imbalance; /* a step is balanced up to this ratio of the slowest to the fastest rank's
                         time */
    double pfs_busy;  /* [s] */
};

/* Returns NULL without memory. */
struct monarch_sim *monarch_sim_new(const struct monarch_sim_job *job,
                                    struct monarch_sim_result *result);
void monarch_sim_free(struct monarch_sim *sim);

/* An epoch's accesses. Arrays are nodes x steps x most_ranks x batch; elements that belong to no
 * rank are -1. */
struct monarch_sim_epoch {
    const int32_t *order; /* files, -1 for none */
    /* NULL, unless copies come and go. If they do: `holder` and `cls` are the node and the class
     * that have the file of an access (-1: the file system). `into` to `down` (0: none) are the
     * classes to which the file's keeper writes the file. The keeper is the file's owner, or the
     * node that uses the file. */
    const int32_t *holder;
    const int8_t *cls, *into, *down;
    /* nodes x steps x most_ranks: how many staging threads fetch a rank's samples of a step. NULL
     * unless the ranks of a node share these threads. */
    const int32_t *threads;
    const int64_t *redundant; /* further bytes read from the file system, or NULL */
};

/* Hands the next epoch to the simulation. Its arrays are not copied: the caller keeps them until
 * MONARCH_SIM_EPOCHS more epochs were handed over. Returns 1; 0 without memory. */
int monarch_sim_give(struct monarch_sim *sim, const struct monarch_sim_epoch *epoch);
/* Runs the simulation. Returns 1 when the next epoch has to be given, 0 at the end, and -1 if
 * nothing moves, which is a fault of this program. */
int monarch_sim_run(struct monarch_sim *sim);
