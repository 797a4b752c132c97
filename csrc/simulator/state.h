/* The state of a simulation. */
#pragma once

#include <stddef.h>

#include "simulator/heap.h"
#include "simulator/machine.h"
#include "simulator/pfs.h"
#include "simulator/simulator.h"

#define EPOCHS_KNOWN MONARCH_SIM_EPOCHS

struct copy {
    int32_t node, file, next; /* of the same file; -1: the last */
    int32_t epoch;            /* in which it was made; -1: before the first */
    double at;                /* when it is whole [s]; negative: not yet */
    int8_t cls;
};

/* Each rank's accesses are counted by themselves, from the rank's first in the job on. */
struct rank {
    uint64_t fetched, used, dropped; /* next access to prefetch, use, drop from the buffer */
    double staged;                   /* [bytes] */
    double clock;                    /* when its compute so far is over [s] */
    uint32_t threads;                /* staging threads that fetch for it now */
    int is_at_barrier;
};

struct known {
    struct monarch_sim_epoch told;
    double *at; /* when a sample is there, and later, when it was taken; negative: not known [s] */
};

struct staging_thread {
    uint32_t rank;   /* the rank for which it fetches now */
    uint64_t access; /* the access that it fetches */
    enum { STARTS, WORKS, WAITS, SLEEPS } is;
    double since; /* WAITS: since when it waits for a rank to use something; SLEEPS: until about
                     when it sleeps */
};

struct class_thread {
    uint32_t copy, node; /* the copy that it makes; the next one of its list is in `cursor` */
    uint8_t cls;
};

/* Events are numbered: first the staging threads, those of node n from n * threads on; then the
 * classes' own threads; then the checkpoint. At the file system, the checkpoint has a number for
 * each node, from its own number on. The comments on arrays begin with their shapes. */
struct monarch_sim {
    struct monarch_sim_job job;
    struct monarch_sim_result *out;
    struct machine machine;
    struct pfs pfs;
    struct heap heap;
    struct known known[EPOCHS_KNOWN];
    uint32_t given; /* epochs */
    int is_started;
    double now; /* of the present event [s] */
    /* Set by run.c: called when a file has come for its asker, and when a rank's staging threads
     * have something to do again. */
    void (*on_arrival)(struct monarch_sim *s, uint32_t who, double at);
    void (*on_room)(struct monarch_sim *s, uint32_t rank, double now);
    /* ranks */
    struct rank *rank;
    uint32_t ranks, arrived; /* ranks: how many there are; for their numbers see next_rank */
    uint64_t step;           /* the present step, counted from the first epoch's first */
    double step_end;
    uint32_t writing; /* how many nodes still write the checkpoint */
    double written;   /* when the last node that has written was done [s] */
    /* threads */
    uint32_t threads; /* staging threads of the node that has most */
    uint32_t class_threads, checkpoint;
    struct staging_thread *staging;
    struct class_thread *class_thread;
    /* copies */
    struct copy *copy;
    int32_t *first_copy;         /* of each file */
    uint32_t *reused;            /* files x EPOCHS_KNOWN: 1 + the last epoch that used it */
    uint32_t *reading;           /* files with owners: first asker of the read, or PFS_NONE */
    uint32_t *joined;            /* threads: next asker of the same read, or PFS_NONE */
    uint64_t *cursor, *list_end; /* nodes x classes: what is still to be copied */
};

static inline uint64_t per_epoch(const struct monarch_sim *s) {
    return (uint64_t)s->job.steps * s->job.batch;
}

/* Returns the number of the rank after this one, or end_of_ranks. Ranks are numbered as if every
 * node had as many as the node with the most ranks. */
static inline uint32_t next_rank(const struct monarch_sim *s, uint32_t rank) {
    uint32_t node = rank / s->job.most_ranks;
    return rank % s->job.most_ranks + 1 < s->job.ranks[node] ? rank + 1
                                                             : (node + 1) * s->job.most_ranks;
}

static inline uint32_t end_of_ranks(const struct monarch_sim *s) {
    return s->job.nodes * s->job.most_ranks;
}

/* Returns how many threads load on a node. Without a staging buffer every rank loads by itself. So
 * does a rank for which there is no thread: a buffer with few threads makes no training slower. */
static inline uint32_t threads_of(const struct monarch_sim *s, uint32_t node) {
    uint32_t threads = s->job.stages ? s->job.threads[0] : 0, ranks = s->job.ranks[node];
    return threads < ranks ? ranks : threads;
}

static inline struct known *known_of(struct monarch_sim *s, uint64_t access) {
    return &s->known[access / per_epoch(s) % EPOCHS_KNOWN];
}

/* Returns an access's place in arrays of nodes x steps x ranks of a node x batch. */
static inline size_t place_of(const struct monarch_sim *s, uint32_t rank, uint64_t access) {
    uint64_t in_epoch = access % per_epoch(s), step = in_epoch / s->job.batch;
    uint32_t node = rank / s->job.most_ranks, local = rank % s->job.most_ranks;
    return (((size_t)node * s->job.steps + step) * s->job.most_ranks + local) * s->job.batch +
           in_epoch % s->job.batch;
}

/* Returns an access's number in the order of its node, whose ranks take turns step by step. */
static inline int64_t number_of(const struct monarch_sim *s, uint32_t rank, uint64_t access) {
    uint64_t position = access / s->job.batch * s->job.most_ranks + rank % s->job.most_ranks;
    return (int64_t)(position * s->job.batch + access % s->job.batch);
}

/* Returns the file's size. A negative number stands for no file: the rank takes fewer samples in
 * this step than others do. */
static inline double size_of(const struct monarch_sim *s, int32_t file) {
    return file < 0 ? 0 : (double)s->job.sizes[file];
}

static inline int32_t file_at(struct monarch_sim *s, uint32_t rank, uint64_t access) {
    return known_of(s, access)->told.order[place_of(s, rank, access)];
}

static inline double size_at(struct monarch_sim *s, uint32_t rank, uint64_t access) {
    return size_of(s, file_at(s, rank, access));
}

/* Returns the node that reads the file from the file system for `node`: the file's owner, or `node`
 * itself. */
static inline uint32_t sim_reader(const struct monarch_sim *s, uint32_t node, int32_t file) {
    int32_t owner = s->job.owner ? s->job.owner[file] : -1;
    return owner < 0 ? node : (uint32_t)owner;
}

/* --- ranks.c --- */

/* Goes on with the training after a rank's sample has come: the ranks use samples and pass barriers
 * until they have to wait for a sample. */
void sim_advance(struct monarch_sim *s, uint32_t rank);
void sim_start_ranks(struct monarch_sim *s, double now);
/* Drops the sample that has been in the staging buffer longest. */
void sim_drop(struct monarch_sim *s, uint32_t rank);
/* sim_begin_checkpoint: call when all ranks have come to the checkpoint. sim_checkpoint_written:
 * call when a node has written its part. */
void sim_begin_checkpoint(struct monarch_sim *s, double now);
void sim_checkpoint_written(struct monarch_sim *s, double end);

/* --- ways.c --- */

struct way {
    double end, whole;          /* when the bytes are there; when the copy is whole */
    uint32_t from, holder, cls; /* from: enum monarch_sim_from */
    int32_t epoch;              /* in which the copy was made; -1: before the first, or not known */
};

/* Returns the way by which the file is there first: a copy, or the file system (NoPFS, section 4:
 * the least of the times, here with the time that earlier requests take). reached: the access up to
 * which the node has come, see copy_due. */
struct way sim_best_way(struct monarch_sim *s, double now, uint32_t node, int32_t file,
                        int64_t reached);
/* Takes the way, and returns when the bytes are there. Returns a negative number if on_arrival
 * tells the thread later, because other transfers on the links decide when. Reads of the file
 * system go through sim_read instead. */
double sim_take_way(struct monarch_sim *s, double now, uint32_t node, const struct way *w,
                    uint32_t who, double bytes);
/* Sends bytes over fair links; the bytes are not there before `earliest`. */
void sim_send(struct monarch_sim *s, double now, uint32_t from, uint32_t to, uint32_t who,
              double bytes, double earliest);
/* Keeps a file that has come from elsewhere as the node's copy, if the node is to have a copy of
 * it. */
void sim_keep(struct monarch_sim *s, double now, uint32_t node, int32_t file, int32_t epoch);

/* --- source.c --- */

/* Asks the file system for the file of the thread `who`. Returns from where the file comes to the
 * thread's node. That is not the file system if another node reads the file, or if the file is
 * being read for another sample of this node already. */
enum monarch_sim_from sim_read(struct monarch_sim *s, double now, uint64_t priority, uint32_t who,
                               double bytes);
/* Call when a request is over. Its node has the bytes at `end`. */
void sim_has_come(struct monarch_sim *s, const struct request *r, double end);

/* --- staging.c --- */

/* Lets a staging thread go on. Returns 0 if it cannot go on before the caller of monarch_sim_run
 * has handed over the next epoch, else 1. */
int sim_staging_thread(struct monarch_sim *s, uint32_t thread, double now);
/* Call when the thread's sample has come from elsewhere. */
void sim_staged(struct monarch_sim *s, uint32_t thread, double now);
/* Wakes the rank's staging threads: the rank has used something at `now`, so there is room. */
void sim_wake(struct monarch_sim *s, uint32_t rank, double now);

/* --- filling.c --- */

void sim_add_copies(struct monarch_sim *s);
void sim_class_thread(struct monarch_sim *s, uint32_t number, double now);
void sim_filled(struct monarch_sim *s, uint32_t number, double now);
