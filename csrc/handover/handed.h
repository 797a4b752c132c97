/* A descriptor that a program has handed over, and the order that fills the copy from this
 * descriptor. */
#pragma once

#include "engine/entries.h"

/* The value of `id` while the file has no entry in the catalog. */
#define MONARCH_NO_ENTRY UINT64_MAX

struct handed {
    int fd;         /* -1: the descriptor was closed, or was passed to an order */
    int is_read;    /* whether the program has read the whole file */
    uint64_t id;    /* number of the file's entry, or MONARCH_NO_ENTRY */
    uint64_t claim; /* number that identifies the file in the program's claim (shared/claims.h) */
    /* the file's attributes if the catalog does not know the file; otherwise only `ino` is set */
    struct monarch_entry entry;
    uint64_t since_ns; /* when the descriptor was received */
    /* Used while the descriptor waits in the table (kept.c). is_told: the daemon was told of the
     * file. is_ordered: an order to fill the file exists, but no thread has begun it. */
    int is_told, is_ordered;
    uint32_t told_at; /* number of the daemon's loop iteration in which is_told was set */
    /* Number of directory renames that programs had recorded when the path was looked up. If it has
     * grown since, the path may be wrong. */
    uint64_t renames;
    struct handed *next; /* the next element of the list of descriptors that must be closed */
    char path[];
};

/* Closes the descriptor, and ends the claim of its file. */
void monarch_give_back(struct pool *p, struct handed *h);
/* Passes the descriptor to the order, so that the fill reads from it. */
void monarch_hand_to(struct handed *h, struct job *job);

enum monarch_answer {
    /* *job is the order that needs the descriptor. *job = NULL: the descriptor is not needed,
     * because another order fills the file, or because no fill is needed. */
    MONARCH_TAKEN,
    /* The daemon must order the fill, or add the file to the catalog, because this thread cannot.
     * Possible reasons: the grant does not allow it; the catalog or the list of ordered fills is
     * full; an older copy must be removed first. */
    MONARCH_REFUSED,
    /* the descriptor must wait: there is no grant, or the file is FILLING but its order cannot be
     * found at this moment */
    MONARCH_NOT_YET,
    MONARCH_ANOTHERS /* the descriptor and the entry belong to different files */
};

/* Finds or makes the order that fills the descriptor's file. Stores it in *job, after removing it
 * from its queue. Stores NULL if no order needs the descriptor (enum monarch_answer). If the file
 * has no entry, first adds the file to the catalog, if the grant allows this. The caller holds the
 * writer's lock and the pool's lock. */
enum monarch_answer monarch_order_handed(struct pool *p, struct monarch_catalog *c,
                                         struct handed *h, struct job **job);
/* Asks the daemon to order a fill of the file. Returns whether the caller must wake the daemon's
 * loop for this. */
int monarch_asks_policy(struct pool *p, const struct handed *h);
