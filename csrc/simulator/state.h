/* The state of a simulation. */
#pragma once

#include <stddef.h>

#include "simulator/heap.h"
#include "simulator/machine.h"
#include "simulator/pfs.h"
#include "simulator/simulator.h"

#define EPOCHS_KNOWN MONARCH_SIM_EPOCHS

struct copy {
    /* next: index of the next copy of the same file; -1 after the last one */
    int32_t node, file, next;
    int32_t epoch; /* the epoch in which the copy was made; -1: before the first epoch */
    double at;     /* when the copy is complete [s]; negative: not begun yet */
    int8_t cls;
};

/* State of a rank. The accesses of each rank are numbered separately, beginning with the rank's
 * first access in the job. */
struct rank {
    /* which of the rank's accesses is the next to be prefetched, to be used, and to be dropped from
     * the buffer */
    uint64_t fetched, used, dropped;
    double staged; /* [bytes] */
    /* time [s] at which the rank ends its computation on the samples that it has used so far */
    double clock;
    uint32_t threads; /* number of staging threads that are now fetching for the rank */
    int is_at_barrier;
};

struct known {
    struct monarch_sim_epoch told;
    /* for each access: the time [s] at which the sample is ready. Once the rank has used it: the
     * time at which this use began. Negative: unknown. */
    double *at;
};

struct staging_thread {
    uint32_t rank;   /* the rank for which the thread fetches now */
    uint64_t access; /* the access whose sample the thread fetches */
    enum { STARTS, WORKS, WAITS, SLEEPS } is;
    /* WAITS: the time at which the thread began to wait for a rank to use a sample. SLEEPS: the
     * time at which the thread wakes, if sim_wake does not wake it earlier */
    double since;
};

struct class_thread {
    /* copy: index of the copy that the thread is making */
    uint32_t copy, node;
    uint8_t cls;
};

/* The simulation. Comments on arrays begin with the index, like those of struct monarch_sim_job.
 *
 * An asker is a thread, or anything else that requests bytes or waits for events. Askers are
 * numbered. First come the staging threads, with `threads` numbers for each node. Then come the
 * threads of the storage classes, and then the writers of a checkpoint. Each node writes its own
 * part of a checkpoint; the asker of node `n` is `checkpoint` + `n`. */
struct monarch_sim {
    struct monarch_sim_job job;
    struct monarch_sim_result *out;
    struct machine machine;
    struct pfs pfs;
    struct heap heap;
    struct known known[EPOCHS_KNOWN];
    uint32_t given; /* number of epochs that the caller has given so far */
    int is_started;
    double now; /* time of the current event [s] */
    /* Callbacks, set by run.c. on_arrival: the file that an asker has requested has arrived.
     * on_room: a rank's staging threads may have work again. */
    void (*on_arrival)(struct monarch_sim *s, uint32_t who, double at);
    void (*on_room)(struct monarch_sim *s, uint32_t rank, double now);
    /* ranks */
    struct rank *rank;
    /* ranks: number of ranks (next_rank tells how they are numbered); arrived: number of ranks at
     * the barrier */
    uint32_t ranks, arrived;
    uint64_t step; /* the current step, counted from the beginning of the job */
    double step_end;
    uint32_t writing; /* number of nodes that are still writing the checkpoint */
    double written;   /* latest time [s] at which a node has finished writing the checkpoint */
    /* threads */
    uint32_t threads; /* the largest number of staging threads of a node */
    uint32_t class_threads, checkpoint;
    struct staging_thread *staging;
    struct class_thread *class_thread;
    /* copies */
    struct copy *copy;
    int32_t *first_copy; /* for each file: index of the file's first copy */
    /* files x EPOCHS_KNOWN. For each file and each value of epoch % EPOCHS_KNOWN: 1 + the number of
     * the last epoch with this value in which the file was used; 0: there is no such epoch */
    uint32_t *reused;
    /* for each file: the asker that has started the current read of the file, or PFS_NONE. Unused
     * if no file has an owner. */
    uint32_t *reading;
    /* The askers that share a read form a list. For each asker: the next asker in this list, or
     * PFS_NONE. */
    uint32_t *joined;
    /* for each node and class: its planned copies that no thread has begun yet are those in the
     * range [cursor, list_end) of `copy` */
    uint64_t *cursor, *list_end;
};

static inline uint64_t per_epoch(const struct monarch_sim *s) {
    return (uint64_t)s->job.steps * s->job.batch;
}

/* Returns the number of the next rank, or end_of_ranks after the last one. Each node has
 * `most_ranks` numbers; if it has fewer ranks, its last numbers are unused. */
static inline uint32_t next_rank(const struct monarch_sim *s, uint32_t rank) {
    uint32_t node = rank / s->job.most_ranks;
    return rank % s->job.most_ranks + 1 < s->job.ranks[node] ? rank + 1
                                                             : (node + 1) * s->job.most_ranks;
}

static inline uint32_t end_of_ranks(const struct monarch_sim *s) {
    return s->job.nodes * s->job.most_ranks;
}

/* Returns the number of threads that load samples on a node. Without a staging buffer, every rank
 * loads its own samples. With a buffer, staging threads do. If there are fewer staging threads than
 * ranks, each rank without one loads its own samples: a buffer must not slow training down. */
static inline uint32_t threads_of(const struct monarch_sim *s, uint32_t node) {
    uint32_t threads = s->job.stages ? s->job.threads[0] : 0, ranks = s->job.ranks[node];
    return threads < ranks ? ranks : threads;
}

static inline struct known *known_of(struct monarch_sim *s, uint64_t access) {
    return &s->known[access / per_epoch(s) % EPOCHS_KNOWN];
}

/* Returns the index of an access in arrays of nodes x steps x most_ranks x batch. */
static inline size_t place_of(const struct monarch_sim *s, uint32_t rank, uint64_t access) {
    uint64_t in_epoch = access % per_epoch(s), step = in_epoch / s->job.batch;
    uint32_t node = rank / s->job.most_ranks, local = rank % s->job.most_ranks;
    return (((size_t)node * s->job.steps + step) * s->job.most_ranks + local) * s->job.batch +
           in_epoch % s->job.batch;
}

/* Returns the position of an access in the access sequence of its node. The sequence is sorted by
 * step. Within a step, the accesses of the node's first rank come first, then those of its second
 * rank, and so on. */
static inline int64_t number_of(const struct monarch_sim *s, uint32_t rank, uint64_t access) {
    uint64_t position = access / s->job.batch * s->job.most_ranks + rank % s->job.most_ranks;
    return (int64_t)(position * s->job.batch + access % s->job.batch);
}

/* Returns the size of a file. If `file` is negative, returns 0: the rank uses fewer samples than
 * other ranks in this step, so there is no sample. */
static inline double size_of(const struct monarch_sim *s, int32_t file) {
    return file < 0 ? 0 : (double)s->job.sizes[file];
}

static inline int32_t file_at(struct monarch_sim *s, uint32_t rank, uint64_t access) {
    return known_of(s, access)->told.order[place_of(s, rank, access)];
}

static inline double size_at(struct monarch_sim *s, uint32_t rank, uint64_t access) {
    return size_of(s, file_at(s, rank, access));
}

/* Returns which node reads the file from the file system for `node`: the file's owner, or `node`
 * itself if there is no owner. */
static inline uint32_t sim_reader(const struct monarch_sim *s, uint32_t node, int32_t file) {
    int32_t owner = s->job.owner ? s->job.owner[file] : -1;
    return owner < 0 ? node : (uint32_t)owner;
}

/* --- ranks.c --- */

/* Continues the training after a sample has arrived for the rank: the ranks use samples and pass
 * barriers, until each of them must wait for a sample. */
void sim_advance(struct monarch_sim *s, uint32_t rank);
void sim_start_ranks(struct monarch_sim *s, double now);
/* Drops the rank's oldest sample from the staging buffer. */
void sim_drop(struct monarch_sim *s, uint32_t rank);
/* Call sim_begin_checkpoint when all ranks have reached the checkpoint. Call sim_checkpoint_written
 * each time a node has written its part. */
void sim_begin_checkpoint(struct monarch_sim *s, double now);
void sim_checkpoint_written(struct monarch_sim *s, double end);

/* --- routes.c --- */

struct route {
    /* end: time at which the bytes have arrived; whole: time at which the copy is complete */
    double end, whole;
    uint32_t from, holder, cls; /* from: enum monarch_sim_from */
    /* the epoch in which the copy was made; -1: before the first epoch, or unknown */
    int32_t epoch;
};

/* Returns the route by which the file arrives earliest: from a copy, or from the file system.
 * Compares routes as in NoPFS, section 4, but includes the wait for earlier requests. reached: the
 * position of the node's current access, which is compared with `copy_due`. */
struct route sim_best_route(struct monarch_sim *s, double now, uint32_t node, int32_t file,
                            int64_t reached);
/* Requests the bytes by this route, and returns the time at which they will have arrived. If that
 * depends on later transfers over the links, returns a negative number, and on_arrival is called
 * later. For reads of the file system, call sim_read instead. */
double sim_take_route(struct monarch_sim *s, double now, uint32_t node, const struct route *w,
                      uint32_t who, double bytes);
/* Sends bytes over fair links; they arrive no earlier than `earliest`. */
void sim_send(struct monarch_sim *s, double now, uint32_t from, uint32_t to, uint32_t who,
              double bytes, double earliest);
/* Makes the node's copy of the file, if such a copy is planned. Call this when the file has arrived
 * at the node. */
void sim_keep(struct monarch_sim *s, double now, uint32_t node, int32_t file, int32_t epoch);

/* --- source.c --- */

/* Requests, from the file system, the file that thread `who` needs. Returns the origin of the bytes
 * for the thread's node. MONARCH_SIM_REMOTE: another node reads the file. MONARCH_SIM_STAGING: this
 * node is already reading it for another sample. MONARCH_SIM_PFS: all other cases. */
enum monarch_sim_from sim_read(struct monarch_sim *s, double now, uint64_t priority, uint32_t who,
                               double bytes);
/* Delivers the file of a served request to all askers of the request. end: the time at which the
 * bytes have arrived at the request's node. */
void sim_has_come(struct monarch_sim *s, const struct request *r, double end);

/* --- staging.c --- */

/* Continues the work of a staging thread. Returns 0 if it needs the next epoch, which the caller of
 * monarch_sim_run has not given yet; otherwise 1. */
int sim_staging_thread(struct monarch_sim *s, uint32_t thread, double now);
/* Preprocesses the thread's sample. Call this when the sample has arrived from the file system or
 * another node. */
void sim_staged(struct monarch_sim *s, uint32_t thread, double now);
/* Wakes the rank's staging threads. Call this when the rank has used a sample at `now`, so that the
 * staging buffer has room again. */
void sim_wake(struct monarch_sim *s, uint32_t rank, double now);

/* --- filling.c --- */

void sim_add_copies(struct monarch_sim *s);
void sim_class_thread(struct monarch_sim *s, uint32_t number, double now);
void sim_filled(struct monarch_sim *s, uint32_t number, double now);
