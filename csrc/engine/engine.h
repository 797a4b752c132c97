/* Between the copying threads (work.c), the fill of one file (fill.c) and the other orders
 * (job.c). */
#ifndef MONARCH_ENGINE_H
#define MONARCH_ENGINE_H

#include <sys/stat.h>
#include <sys/types.h>

#include "copy/block_sum.h"
#include "serving/holdings.h"

/* A fill follows its file through at most so many nodes that have no room for it. */
#define MONARCH_MOVES 6

/* One read and one write move this much at most: long enough that a system call costs nothing,
 * short enough that the bytes are still in the second-level cache when they are hashed and
 * written. */
#define MONARCH_CHUNK (1024 * 1024)

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

/* What all threads share and that is no queue. */
struct monarch_engine {
    uint64_t block_bytes;
    uint64_t bytes;      /* atomic: read from sources */
    uint64_t files;      /* atomic: filled from sources */
    uint64_t peer_bytes; /* atomic: got from peers */
    uint64_t peer_files; /* atomic: filled from peers alone */
    int stopping;        /* atomic */
    /* Whom an order names, by number; NULL for who is not there. Atomic. */
    struct monarch_peer *peers[MONARCH_MAX_PEERS];
    /* Whose askers are told of every unit; NULL for nobody. Atomic. */
    struct monarch_holdings *holdings;
    /* What readers wait for, done by a thread that has to wait for a peer itself. `buffer` has
     * MONARCH_CHUNK bytes. */
    void (*serve_readers)(struct monarch_engine *e, char *buffer);
    /* At most this much from the sources each second; 0: no limit. The times are atomic: when the
     * next operation, the next byte may be asked for [ns]. */
    uint64_t bytes_per_s, ops_per_s, next_byte_ns, next_op_ns;
    /* Through which finished copies are published; NULL: by whoever takes the results. */
    struct monarch_writer *writer;
    struct monarch_control *control;
    uint32_t kept_sources; /* atomic: a bit for each whose pages stay when they were read */
    struct monarch_clients *clients;
    struct monarch_fills *fills;
    struct place *place; /* the sources, then each peer by its number: see flow.c */
    /* Atomic: see monarch_note_speed and monarch_note_pages. */
    uint32_t fast[MONARCH_MAX_SOURCES], pageless[MONARCH_MAX_SOURCES];
    uint32_t judged[MONARCH_MAX_SOURCES]; /* by so many fills */
};

/* --- flow.c ---------------------------------------------------------------------------------- */

#define MONARCH_PLACES (1 + MONARCH_MAX_PEERS)
#define MONARCH_PLACE_OF_SOURCES 0
#define MONARCH_PLACE_OF_PEER(number) (1 + (number))

struct place {
    struct monarch_flow flow; /* atomic */
    uint32_t busy;            /* atomic: threads at it */
};

/* A thread at a place. */
struct visit {
    struct place *place;
    uint64_t since_ns;
    unsigned level;
};

struct visit monarch_visit(struct monarch_engine *e, unsigned place);
/* It has got so many bytes there. */
void monarch_leave(const struct visit *v, uint64_t bytes);
/* The time that it was there for says nothing of the place. */
void monarch_leave_unseen(const struct visit *v);
/* A file of one unit took so long at its source, to be opened and read. What most of the last files
 * took says whether the source is a fast one. */
void monarch_note_speed(struct monarch_engine *e, unsigned source, uint64_t ns);
/* Of a file that a program had just read, the kernel had some pages no more. What is true of most
 * of the last files says whether the mount keeps them. */
void monarch_note_pages(struct monarch_engine *e, unsigned source, int are_gone);

/* --- job.c ----------------------------------------------------------------------------------- */

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
void monarch_wait_turn(struct monarch_engine *e, uint64_t n);
uint64_t monarch_now_ns(void);

/* --- fill.c ---------------------------------------------------------------------------------- */

/* A copy in the making. What is marked so is the engine's, under its lock. */
struct fill {
    struct fill *next;   /* engine's */
    struct fill *same;   /* engine's: the next one of its bucket, see schedule.c */
    unsigned users;      /* engine's: threads at work on it */
    uint64_t next_block; /* engine's: nobody has begun this one or those behind it */
    uint64_t asked_ns;   /* engine's, atomic: when a reader last waited for a unit */
    uint64_t next_unit;  /* engine's: behind the one that it waited for */
    unsigned asked_by;   /* engine's: the rank of that reader */
    uint64_t *claimed;   /* engine's: a bit for every unit that somebody has taken up */
    struct job *job;
    struct monarch_fill *map;
    int from;         /* atomic: the source's file, -1 as long as nothing is read from it */
    int peers;        /* that the order names */
    int asks;         /* atomic: which of the job's peers; those before it have failed it */
    int gave;         /* atomic: a bit for each of them of which the copy has bytes */
    int is_last_late; /* atomic: the last block did not come from a peer in time */
    int lacks_pages;  /* atomic: a read by its reader's descriptor had to wait for the source */
    int to, failed;   /* failed: atomic */
    uint64_t units, unit_bytes, blocks, block_bytes;
    uint64_t blocks_left; /* atomic: without a checksum yet */
    uint64_t written[2];  /* atomic: blocks + 1 whose write-back was begun last, and before that */
    uint64_t *sums;       /* of the blocks */
    const unsigned char *content_key; /* NULL: nobody needs digests of the blocks */
    struct monarch_digest *digests;   /* NULL: the same */
    int lacks_digest;                 /* atomic: one could not be made */
    uint64_t source_ns;               /* of one unit: what the open and the reads took */
    uint32_t *left;                   /* atomic, of every block: units that are not written yet */
};

/* The claim of a file whose descriptor was handed over, and is closed now. */
void monarch_end_claim(struct monarch_clients *m, uint64_t id);
/* Whether the descriptor is to be closed now: its program waits for that, or the claim has ended.
 */
int monarch_is_recalled(const struct monarch_clients *m, uint64_t id, uint64_t now_ns);
/* A reader's descriptor that the order has and does not use; nothing if it has none. */
void monarch_close_handed(struct monarch_engine *e, struct job *job);
/* Opens both files and makes the copy known to readers. NULL: the job has its answer. */
struct fill *monarch_fill_begin(struct monarch_engine *e, struct job *job);
/* Moves `count` units, of one block, that the caller has claimed. `stream` is the checksum of the
 * block's bytes so far when they come in order, else NULL. */
void monarch_fill_move(struct monarch_engine *e, struct fill *f, uint64_t unit, uint64_t count,
                       char *buffer, struct block_sum_stream *stream);
int monarch_fill_is_over(const struct fill *f); /* complete, or failed */
/* Once it is over and nobody else uses it: the answer; frees it. */
void monarch_fill_end(struct monarch_engine *e, struct fill *f);

/* --- origin.c -------------------------------------------------------------------------------- */

/* Gets the bytes [at, at + n) of one block from the peer that the order names and writes them to
 * the copy. *sum is theirs. 0 when they have to come from the source: the order names no
 * peer, or it has failed. */
int monarch_fetch(struct monarch_engine *e, struct fill *f, uint64_t at, uint64_t n, char *buffer,
                  struct block_sum *sum);
/* The peer that gave all of a fill that is over, -1 for none. It sends the last block only when it
 * has the file whole. */
int monarch_giver_of(const struct fill *f);
/* A source has given something. */
void monarch_note_source(struct monarch_engine *e);
/* The source's file, which is opened when it is first needed; as monarch_open_source. */
int monarch_source_of(struct monarch_engine *e, struct fill *f, int *status);

/* --- fill.c: readers ---------------------------------------------------------------------------
 */

/* Whether a client's request for the file lies in the bitmap, not taken yet: then the file is
 * ABSENT only until somebody orders its fill. */
int monarch_is_requested(const struct monarch_clients *m, uint64_t id);
/* Tells the readers that wait for units [first, first + count) of an entry to look again. */
void monarch_answer(struct monarch_clients *m, uint64_t entry, uint64_t first, uint64_t count);

#endif
