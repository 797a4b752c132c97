/* What a simulation knows at a time. */
#ifndef MONARCH_SIM_STATE_H
#define MONARCH_SIM_STATE_H

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

/* Accesses count from the job's first; those of a rank are its own. */
struct rank {
    uint64_t fetched, used, dropped; /* the next to prefetch, to use, to leave the staging buffer */
    double staged;                   /* [bytes] */
    double clock;                    /* when its compute so far is over [s] */
    uint32_t threads;                /* that fetch for it now */
    int is_at_barrier;
};

struct known {
    struct monarch_sim_epoch told;
    double *at; /* when a sample is there; then, when it was taken; negative: not known [s] */
};

struct staging_thread {
    uint32_t rank;   /* for whom it fetches now, and */
    uint64_t access; /* what */
    enum { STARTS, WORKS, WAITS, SLEEPS } is;
    double since; /* waits: since when, until a rank uses something; sleeps: until when, or so */
};

struct class_thread {
    uint32_t copy, node; /* what it copies; the next of its list is in `cursor` */
    uint8_t cls;
};

/* Events have numbers: the staging threads, those of node n from n * threads on; the classes' own
 * threads; the checkpoint, of node n from there on at the file system. */
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
    /* What run.c does when a file has come for whoever asked, and when a rank's staging threads
     * have something to do again. */
    void (*on_arrival)(struct monarch_sim *s, uint32_t who, double at);
    void (*on_room)(struct monarch_sim *s, uint32_t rank, double now);
    /* ranks */
    struct rank *rank;
    uint32_t ranks, arrived; /* ranks: that there are; their numbers: see next_rank */
    uint64_t step;           /* the present one, of all */
    double step_end;
    uint32_t writing; /* nodes that write the checkpoint */
    double written;   /* when those that have are done [s] */
    /* threads */
    uint32_t threads; /* of the node that has most for staging */
    uint32_t class_threads, checkpoint;
    struct staging_thread *staging;
    struct class_thread *class_thread;
    /* copies */
    struct copy *copy;
    int32_t *first_copy;         /* of each file */
    uint32_t *reused;            /* files x EPOCHS_KNOWN: the last epoch in which it was, and one */
    uint32_t *reading;           /* files with owners: for whom first it is read now, or PFS_NONE */
    uint32_t *joined;            /* threads: who waits for the same read next, or PFS_NONE */
    uint64_t *cursor, *list_end; /* nodes x classes: what is still to be copied */
};

static inline uint64_t per_epoch(const struct monarch_sim *s) {
    return (uint64_t)s->job.steps * s->job.batch;
}

/* Ranks have numbers as if every node had as many as the one with most. The number of
 * the rank behind one, or end_of_ranks. */
static inline uint32_t next_rank(const struct monarch_sim *s, uint32_t rank) {
    uint32_t node = rank / s->job.most_ranks;
    return rank % s->job.most_ranks + 1 < s->job.ranks[node] ? rank + 1
                                                             : (node + 1) * s->job.most_ranks;
}

static inline uint32_t end_of_ranks(const struct monarch_sim *s) {
    return s->job.nodes * s->job.most_ranks;
}

/* Threads that load on a node. Without a staging buffer every rank does for itself, and so does one
 * for which there is no thread: a buffer with few threads makes no training slower. */
static inline uint32_t threads_of(const struct monarch_sim *s, uint32_t node) {
    uint32_t threads = s->job.stages ? s->job.threads[0] : 0, ranks = s->job.ranks[node];
    return threads < ranks ? ranks : threads;
}

static inline struct known *known_of(struct monarch_sim *s, uint64_t access) {
    return &s->known[access / per_epoch(s) % EPOCHS_KNOWN];
}

/* Its place in arrays of nodes x steps x ranks of a node x batch. */
static inline size_t place_of(const struct monarch_sim *s, uint32_t rank, uint64_t access) {
    uint64_t in_epoch = access % per_epoch(s), step = in_epoch / s->job.batch;
    uint32_t node = rank / s->job.most_ranks, local = rank % s->job.most_ranks;
    return (((size_t)node * s->job.steps + step) * s->job.most_ranks + local) * s->job.batch +
           in_epoch % s->job.batch;
}

/* Its number in the order of its node, whose ranks take turns step by step. */
static inline int64_t number_of(const struct monarch_sim *s, uint32_t rank, uint64_t access) {
    uint64_t turn = access / s->job.batch * s->job.most_ranks + rank % s->job.most_ranks;
    return (int64_t)(turn * s->job.batch + access % s->job.batch);
}

/* Less than 0 is no file: a rank takes fewer samples in a step than others do. */
static inline double size_of(const struct monarch_sim *s, int32_t file) {
    return file < 0 ? 0 : (double)s->job.sizes[file];
}

static inline int32_t file_at(struct monarch_sim *s, uint32_t rank, uint64_t access) {
    return known_of(s, access)->told.order[place_of(s, rank, access)];
}

static inline double size_at(struct monarch_sim *s, uint32_t rank, uint64_t access) {
    return size_of(s, file_at(s, rank, access));
}

/* Who reads the file for the node: its owner, or the node itself. */
static inline uint32_t sim_reader(const struct monarch_sim *s, uint32_t node, int32_t file) {
    int32_t owner = s->job.owner ? s->job.owner[file] : -1;
    return owner < 0 ? node : (uint32_t)owner;
}

/* --- ranks.c --- */

/* After a rank's sample has come: on to where one waits for the next, over barriers. */
void sim_advance(struct monarch_sim *s, uint32_t rank);
void sim_start_ranks(struct monarch_sim *s, double now);
/* The sample that has been in the staging buffer longest leaves it. */
void sim_drop(struct monarch_sim *s, uint32_t rank);
/* All have come to the checkpoint; a node has written its part. */
void sim_begin_checkpoint(struct monarch_sim *s, double now);
void sim_checkpoint_written(struct monarch_sim *s, double end);

/* --- ways.c --- */

struct way {
    double end, whole;          /* when the bytes are there; the copy */
    uint32_t from, holder, cls; /* from: enum monarch_sim_from */
    int32_t epoch;              /* in which the copy was made; -1: before the first, or not known */
};

/* The copy from which the file is there first, or the file system (NoPFS 4: the least of the times;
 * here with what others have asked for before). reached : the access up to which the node has come,
 * see copy_due. */
struct way sim_best_way(struct monarch_sim *s, double now, uint32_t node, int32_t file,
                        int64_t reached);
/* Takes the way: when the bytes are there. Not for the file system, which is asked. Negative when
 * the thread is told (on_arrival), because others on the links decide when. */
double sim_take_way(struct monarch_sim *s, double now, uint32_t node, const struct way *w,
                    uint32_t who, double bytes);
/* Over fair links; not there before `earliest`. */
void sim_send(struct monarch_sim *s, double now, uint32_t from, uint32_t to, uint32_t who,
              double bytes, double earliest);
/* A file that has come from elsewhere goes where it has its place. */
void sim_keep(struct monarch_sim *s, double now, uint32_t node, int32_t file, int32_t epoch);

/* --- source.c --- */

/* A thread asks the file system for its file. Returns from where the file comes to its node: not
 * from the file system if another node reads it, or for another sample of this node already. */
enum monarch_sim_from sim_read(struct monarch_sim *s, double now, uint64_t turn, uint32_t who,
                               double bytes);
/* A request is over, and its node has the bytes at `end`. */
void sim_has_come(struct monarch_sim *s, const struct request *r, double end);

/* --- staging.c --- */

/* 0 when the next epoch is needed first. */
int sim_staging_thread(struct monarch_sim *s, uint32_t thread, double now);
/* The thread's sample has come from elsewhere. */
void sim_staged(struct monarch_sim *s, uint32_t thread, double now);
/* The rank has used something at `now`: there is room. */
void sim_wake(struct monarch_sim *s, uint32_t rank, double now);

/* --- filling.c --- */

void sim_add_copies(struct monarch_sim *s);
void sim_class_thread(struct monarch_sim *s, uint32_t number, double now);
void sim_filled(struct monarch_sim *s, uint32_t number, double now);

#endif
