/* An order makes the engine do one thing with one file or copy (enum monarch_job_kind). This header
 * declares the data of an order, and a few functions for it. */
#pragma once

#include <sys/types.h>

#include "copy/state.h"

/* A fill asks the nodes that its order names. A node without room for the file answers with the
 * number of another node, which the fill asks next. This is the maximum number of such further
 * nodes. */
#define MONARCH_MOVES 6

struct job {
    struct job *next, *before; /* neighbors in the queue */
    struct job *same;          /* the next order in the same hash bucket, see entries.c */
    struct queue *queue;
    struct monarch_result result;
    int slot; /* index of the fill's slot in the fills segment; -1 for none */
    /* atomic: the descriptor that a reader of the file has handed over; -1 for none */
    int handed;
    /* whether the reader that handed over the descriptor has read the whole file */
    int is_read;
    int is_kept; /* a reader's descriptor is kept for this order (monarch_take_kept) */
    /* number that identifies the file in the reader's claim (shared/claims.h) */
    uint64_t claim;
    struct pack *pack; /* the pack that has the file as a member; NULL for none, see pack.h */
    uint32_t member;   /* index of the file among the members of `pack` */
    /* Numbers of the peers to copy from, in the sequence in which they are asked; -1 after the last
     * one. The elements from MONARCH_ASKED on are atomic, and are set during the fill, when a node
     * without room names another node. */
    int peer[MONARCH_ASKED + MONARCH_MOVES];
    /* a bit for each element of `peer`, set if that peer is known to have the whole file */
    int has_it;
    /* descriptors of two directories: the source's root, and the tier's directory of copies */
    int source_root, copies;
    int is_stamped; /* whether `stamp` is stored in the copy's modification time (monarch_stamp) */
    uint64_t stamp;
    uint64_t expected_sum;
    struct monarch_entry entry; /* the file's catalog entry, copied when the order was made */
    char path[];
};

int monarch_fail(struct job *job, int status, int error); /* returns -1 */
int monarch_tier_status(int error);
void monarch_remove_copy(struct job *job); /* sets result.left if the copy could not be removed */
void monarch_copy_name(const struct job *job, char name[MONARCH_COPY_NAME + 4]);
