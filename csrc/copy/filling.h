/* A copy in the making, as fill.c and origin.c see it. */
#ifndef MONARCH_FILLING_H
#define MONARCH_FILLING_H

#include "copy/block_sum.h"
#include "copy/job.h"

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

#endif
