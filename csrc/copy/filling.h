/* The state of a fill, which fill.c, source_file.c and from_peer.c share. */
#pragma once

#include "copy/job.h"
#include "peers/mac.h"
#include "shared/xxh3.h"

/* The two checksums of a block, computed while the block is copied. xxh3: its XXH3-64. digest: its
 * digest (peers/mac.h), by which peers check that the block is authentic. */
struct block_sum {
    uint64_t xxh3;
    struct monarch_digest digest;
    int has_digest;
};

struct block_sum_stream {
    struct xxh3_stream xxh3;
    struct monarch_mac *content; /* computes the digest; NULL: no digest is made */
};

/* An unfinished copy. Fields marked "engine's" belong to csrc/engine, and are used under the pool's
 * lock. */
struct fill {
    struct fill *next;   /* engine's */
    struct fill *same;   /* engine's: the next fill in the same hash bucket, see entries.c */
    unsigned users;      /* engine's: number of threads that work on the fill */
    uint64_t next_block; /* engine's: the first block that no thread has begun */
    uint64_t asked_ns;   /* engine's, atomic: when a reader last waited for a unit */
    uint64_t next_unit;  /* engine's: the unit to fill next, if a reader has waited */
    unsigned asked_by;   /* engine's: the rank of the reader that waited last */
    uint64_t *claimed;   /* engine's: a bit for each unit that a thread has claimed */
    struct job *job;
    struct monarch_fill *map;
    int from;  /* atomic: descriptor of the file at the source; -1: the fill has none yet */
    int peers; /* number of peers that the order names */
    /* atomic: index in job->peer of the peer that is asked now; all peers before that index have
     * failed */
    int asks;
    /* atomic: a bit for each element of job->peer, set if that peer has sent bytes of the copy */
    int gave;
    int is_last_late; /* atomic: the file's last block did not arrive from a peer in time */
    /* atomic: a read from a handed-over descriptor had to wait for the source, because pages of the
     * file were no longer in the page cache */
    int lacks_pages;
    int to, failed; /* to: descriptor of the copy; failed: atomic, whether the fill has failed */
    uint64_t units, unit_bytes, blocks, block_bytes;
    uint64_t blocks_left; /* atomic: blocks without a checksum yet */
    /* Atomic: two blocks, each as its index + 1; 0: none. written[0]: the block whose write-back
     * began last. written[1]: the one before it. */
    uint64_t written[2];
    uint64_t *sums;                   /* for each block, its XXH3-64 */
    const unsigned char *content_key; /* key of the digests; NULL: no digests are made */
    struct monarch_digest *digests;   /* for each block, its digest; NULL: no digests are made */
    int lacks_digest;                 /* atomic: the digest of some block could not be made */
    /* time [ns] that the open and the reads at the source took; measured only for a file of one
     * unit */
    uint64_t source_ns;
    uint32_t *left; /* atomic: for each block, the number of its units that are not written yet */
};
