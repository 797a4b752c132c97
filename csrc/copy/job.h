/* Orders: what they hold, and those that are no fills. */
#ifndef MONARCH_JOB_H
#define MONARCH_JOB_H

#include <sys/types.h>

#include "copy/state.h"

/* A fill follows its file through at most so many nodes that have no room for it. */
#define MONARCH_MOVES 6

struct job {
    struct job *next, *before; /* in its queue */
    struct job *same;          /* the next one of its bucket, see schedule.c */
    struct queue *queue;
    struct monarch_result result;
    int slot;       /* of the fills segment, -1 for none */
    int handed;     /* atomic: a descriptor of its file, from a reader; -1: for none */
    int is_read;    /* its reader has read all of the file */
    int is_kept;    /* a descriptor waits for it, see monarch_take_kept */
    uint64_t claim; /* the number that its claim has */
    /* Whose copy it is made from, in this order; behind the last one -1. Atomic behind the first
     * MONARCH_ASKED: a node that has no room for the file names the next one. */
    int peer[MONARCH_ASKED + MONARCH_MOVES];
    int has_it;              /* a bit for each of them that has the file whole */
    int source_root, copies; /* descriptors of the directories */
    int is_stamped;          /* its copy is, with this (monarch_stamp) */
    uint64_t stamp;
    uint64_t expected_sum;
    struct monarch_entry entry; /* as it was when the order was given */
    char path[];
};

/* Does an order that is no fill and leaves its answer in job->result; `buffer` has MONARCH_CHUNK
 * bytes. One that brings a copy into memory does a part, and is ABANDONED as long as more is left.
 */
void monarch_do_job(struct monarch_engine *e, struct job *job, char *buffer);

int monarch_fail(struct job *job, int status, int error); /* always -1 */
int monarch_tier_status(int error);
void monarch_remove_copy(struct job *job); /* says in the result if it stays */
void monarch_copy_name(const struct job *job, char name[MONARCH_COPY_NAME + 4]);
/* -1: *status is why, and errno, or 0. Several threads may open it for one order. */
int monarch_open_source(struct monarch_engine *e, const struct job *job, int *status);
/* Of a regular file, and its device, as the kernel remembers them; 0: it is none. */
uint64_t monarch_inode_of(int fd, uint64_t *dev);
/* Whether the descriptor, which a program has opened, is one to read the order's file by. */
int monarch_is_usable(const struct monarch_engine *e, const struct job *job, int fd);
/* After the last byte: whether the file is still what the catalog says, so that all bytes belong
 * together. The source's server is asked: what the kernel remembers may be older than the bytes. */
int monarch_source_is_unchanged(struct job *job, int fd);
/* Reads up to `n` bytes at `at`; fewer only at the end of the file; -errno. */
ssize_t monarch_read_fully(int fd, char *buf, size_t n, off_t at);
/* The same of a source's file, whose pages do not stay where the kernel can do that. */
ssize_t monarch_read_source(struct monarch_engine *e, const struct job *job, int fd, char *buf,
                            size_t n, off_t at);
int monarch_drops_behind(const struct monarch_engine *e, const struct job *job);
int monarch_can_drop_behind(void); /* whether the kernel can at all */
int monarch_write_fully(int fd, const char *buf, size_t n, off_t at);
/* Waits until the sources may be asked for `n` more bytes. */
void monarch_acquire_rate(struct monarch_engine *e, uint64_t n);

#endif
