/* Orders: their data, and the work of all orders but fills. */
#pragma once

#include <sys/types.h>

#include "copy/state.h"

/* How many nodes a fill may ask beyond those of its order. A node that was asked, but has no room
 * for the file, names the next one. */
#define MONARCH_MOVES 6

struct job {
    struct job *next, *before; /* in its queue */
    struct job *same;          /* the next order in the same hash bucket, see schedule.c */
    struct queue *queue;
    struct monarch_result result;
    int slot; /* of the fills segment, -1 for none */
    /* atomic: a descriptor of the file that a reader has handed over; -1 for none */
    int handed;
    int is_read;       /* the reader has read the whole file */
    int is_kept;       /* a descriptor waits for this order, see monarch_take_kept */
    uint64_t claim;    /* the number under which its file is claimed */
    struct pack *pack; /* the pack that has the file as a member; NULL for none, see pack.h */
    uint32_t member;   /* index of that member */
    /* The peers to copy from, in this order; -1 after the last one. The elements from MONARCH_ASKED
     * on are atomic and are filled while the fill runs: a node that has no room for the file names
     * the next one. */
    int peer[MONARCH_ASKED + MONARCH_MOVES];
    /* a bit for each element of `peer`, set if that peer has the whole file */
    int has_it;
    /* descriptors of the source's root and of the tier's directory of copies */
    int source_root, copies;
    int is_stamped; /* whether the copy gets `stamp` (monarch_stamp) */
    uint64_t stamp;
    uint64_t expected_sum;
    struct monarch_entry entry; /* the entry at the time of the order */
    char path[];
};

/* Does an order other than a fill, and stores the result in job->result. `buffer` has MONARCH_CHUNK
 * bytes. A PAGE_IN needs several calls: each does one part, and the status is ABANDONED until the
 * last one. */
void monarch_do_job(struct monarch_engine *e, struct job *job, char *buffer);

int monarch_fail(struct job *job, int status, int error); /* returns -1 */
int monarch_tier_status(int error);
void monarch_remove_copy(struct job *job); /* sets result.left if the copy could not be removed */
void monarch_copy_name(const struct job *job, char name[MONARCH_COPY_NAME + 4]);
/* Opens the order's file at the source. Returns -1 on failure: *status gets the reason, and errno
 * the error, or 0 if the file has changed. Several threads may open the file for one order. */
int monarch_open_source(struct monarch_engine *e, const struct job *job, int *status);
/* Returns the inode number of a regular file and stores its device in *dev, both from cached
 * attributes. Returns 0 if `fd` is no regular file. */
uint64_t monarch_inode_of(int fd, uint64_t *dev);
/* Returns whether the order's file can be read through a descriptor that a program has opened. */
int monarch_is_usable(const struct monarch_engine *e, const struct job *job, int fd);
/* Checks, once all bytes were read, that the file is still the one that the catalog describes, so
 * that the bytes belong together. Returns 0, or -1 if the file has changed. Asks the source's
 * server, because the kernel's cached attributes may be older than the bytes. */
int monarch_source_is_unchanged(struct job *job, int fd);
/* Reads `n` bytes at offset `at`, or fewer at the end of the file. Returns the number of bytes, or
 * -errno. */
ssize_t monarch_read_fully(int fd, char *buf, size_t n, off_t at);
/* Like monarch_read_fully, for a source's file. If the kernel supports it, the pages read do not
 * stay in the page cache. */
ssize_t monarch_read_source(struct monarch_engine *e, const struct job *job, int fd, char *buf,
                            size_t n, off_t at);
int monarch_drops_behind(const struct monarch_engine *e, const struct job *job);
int monarch_can_drop_behind(void); /* whether the kernel can drop pages after a read, and safely */
int monarch_write_fully(int fd, const char *buf, size_t n, off_t at);
/* Waits until the rate limits allow one more operation and `n` more bytes at the sources. */
void monarch_acquire_rate(struct monarch_engine *e, uint64_t n);
