/* A copy in the making, as fill.c and origin.c see it. */
#pragma once

#include "copy/block_sum.h"
#include "copy/job.h"

/* A copy in the making. Fields marked "engine's" belong to the engine, under its lock. */
struct fill {
    struct fill *next;   /* engine's */
    struct fill *same;   /* engine's: the next one in its bucket, see schedule.c */
    unsigned users;      /* engine's: threads at work on it */
    uint64_t next_block; /* engine's: the first block that no thread has begun */
    uint64_t asked_ns;   /* engine's, atomic: when a reader last waited for a unit */
    uint64_t next_unit;  /* engine's: the unit after the one that this reader waited for */
    unsigned asked_by;   /* engine's: the rank of that reader */
    uint64_t *claimed;   /* engine's: a bit for every unit that a thread has taken up */
    struct job *job;
    struct monarch_fill *map;
    int from;  /* atomic: the source's file, -1 as long as nothing is read from it */
    int peers; /* how many peers the order names */
    int asks;  /* atomic: index of the job's peer that is asked now; earlier peers have failed */
    int gave;  /* atomic: a bit for each of the job's peers that gave bytes of the copy */
    int is_last_late; /* atomic: the last block did not come from a peer in time */
    int lacks_pages;  /* atomic: a read from the reader's descriptor had to wait for the source */
    int to, failed;   /* failed: atomic */
    uint64_t units, unit_bytes, blocks, block_bytes;
    uint64_t blocks_left; /* atomic: blocks without a checksum yet */
    uint64_t written[2];  /* atomic: block + 1 of the last write-back begun, and of the one before
                             it */
    uint64_t *sums;       /* XXH3-64 of each block */
    const unsigned char *content_key; /* NULL: nobody needs digests */
    struct monarch_digest *digests;   /* of each block; NULL: nobody needs them */
    int lacks_digest;                 /* atomic: a block's digest could not be made */
    uint64_t source_ns; /* of a file of one unit: how long its open and its reads took */
    uint32_t *left;     /* atomic: for each block, how many units are not written yet */
};
