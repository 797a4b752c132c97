/* Orders: what an order holds, and the work of orders other than fills. */
#pragma once

#include <sys/types.h>

#include "copy/state.h"

/* How many times a fill follows a file to another node, because the node that was asked has no room
 * for the file. */
#define MONARCH_MOVES 6

struct job {
    struct job *next, *before; /* in its queue */
    struct job *same;          /* the next one in its bucket, see schedule.c */
    struct queue *queue;
    struct monarch_result result;
    int slot;          /* of the fills segment, -1 for none */
    int handed;        /* atomic: a descriptor of its file, from a reader; -1 for none */
    int is_read;       /* its reader has read all of the file */
    int is_kept;       /* a descriptor waits for it, see monarch_take_kept */
    uint64_t claim;    /* the number under which its file is claimed */
    struct pack *pack; /* the pack that has its file as a member; NULL for none, see pack.h */
    uint32_t member;   /* which one */
    /* The peers to copy from, in this order, and -1 after the last one. The places after the first
     * MONARCH_ASKED are atomic and filled later: a node that has no room for the file names the
     * next one. */
    int peer[MONARCH_ASKED + MONARCH_MOVES];
    int has_it;              /* a bit for each element of `peer` that has the file whole */
    int source_root, copies; /* descriptors of the source's and of the tier's directory */
    int is_stamped;          /* its copy is stamped, with `stamp` (monarch_stamp) */
    uint64_t stamp;
    uint64_t expected_sum;
    struct monarch_entry entry; /* as it was when the order was given */
    char path[];
};

/* Does an order other than a fill, and leaves the result in job->result. `buffer` has MONARCH_CHUNK
 * bytes. Each call does one part of a PAGE_IN, whose status is ABANDONED as long as parts are
 * left. */
void monarch_do_job(struct monarch_engine *e, struct job *job, char *buffer);

int monarch_fail(struct job *job, int status, int error); /* returns -1 */
int monarch_tier_status(int error);
void monarch_remove_copy(struct job *job); /* result.left says if the copy stays */
void monarch_copy_name(const struct job *job, char name[MONARCH_COPY_NAME + 4]);
/* Opens the order's file at the source. Returns -1 on failure: *status says why, and errno has the
 * error, or 0 if the file has changed. Several threads may open the file for one order. */
int monarch_open_source(struct monarch_engine *e, const struct job *job, int *status);
/* Returns the inode number of a regular file, and in *dev its device, from cached attributes; 0 if
 * `fd` is no regular file. */
uint64_t monarch_inode_of(int fd, uint64_t *dev);
/* Returns whether the order's file can be read through a descriptor that a program has opened. */
int monarch_is_usable(const struct monarch_engine *e, const struct job *job, int fd);
/* Checks, after the last byte was read, that the file is still the one that the catalog describes,
 * so that all bytes belong together. Returns 0, or -1 if it is not. The source's server is asked,
 * because attributes that the kernel has cached may be older than the bytes. */
int monarch_source_is_unchanged(struct job *job, int fd);
/* Reads `n` bytes at `at`, or fewer at the end of the file. Returns how many, or -errno. */
ssize_t monarch_read_fully(int fd, char *buf, size_t n, off_t at);
/* Does what monarch_read_fully does, for a source's file. The pages that it reads do not stay in
 * memory if the kernel can drop them. */
ssize_t monarch_read_source(struct monarch_engine *e, const struct job *job, int fd, char *buf,
                            size_t n, off_t at);
int monarch_drops_behind(const struct monarch_engine *e, const struct job *job);
int monarch_can_drop_behind(void); /* whether the kernel can drop pages at all */
int monarch_write_fully(int fd, const char *buf, size_t n, off_t at);
/* Waits until the sources may be asked for one more operation and `n` more bytes. */
void monarch_acquire_rate(struct monarch_engine *e, uint64_t n);
