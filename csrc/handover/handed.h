/* A descriptor that a reader has handed over, and the order that fills the file from it. */
#pragma once

#include "engine/entries.h"

/* The value of `id` while the file has no entry in the catalog. */
#define MONARCH_NO_ENTRY UINT64_MAX

struct handed {
    int fd;         /* -1: the descriptor was closed, or an order has it */
    int is_read;    /* whether the program has read the whole file */
    uint64_t id;    /* number of the file's entry, or MONARCH_NO_ENTRY */
    uint64_t claim; /* number under which the file is claimed (shared/claims.h) */
    /* the file's attributes if the catalog does not know the file; otherwise only `ino` is set */
    struct monarch_entry entry;
    uint64_t since_ns; /* when the descriptor was received */
    /* is_told, is_ordered and told_at are used while the descriptor waits for its order (kept.c).
     * is_told: policy knows of the file. is_ordered: an order to fill the file exists, but no
     * thread has begun the order. */
    int is_told, is_ordered;
    uint32_t told_at; /* iteration of the daemon's loop in which policy learned of the file */
    /* number of directory renames that had happened before the path was looked up. If more have
     * happened since then, the path may be wrong. */
    uint64_t renames;
    struct handed *next; /* the next element of the list of descriptors that must be closed */
    char path[];
};

/* Closes the descriptor, and ends the claim of its file. */
void monarch_give_back(struct pool *p, struct handed *h);
/* Passes the descriptor to the order, which fills the file from it. */
void monarch_hand_to(struct handed *h, struct job *job);

enum monarch_answer {
    /* *job is the order. If *job is NULL, another order fills the file, or no fill is needed. */
    MONARCH_TAKEN,
    /* Policy must order the fill, or add the file to the catalog. There are three possible reasons:
     * the grant does not cover the file; the catalog or the list of placed files is full; an older
     * copy must be removed first. */
    MONARCH_REFUSED,
    /* the descriptor must wait: there is no grant, or the file is FILLING but its order cannot be
     * found at this moment */
    MONARCH_NOT_YET,
    MONARCH_ANOTHERS /* the descriptor and the entry belong to different files */
};

/* Finds or makes the order that fills the file. If the order is queued, takes it out of its queue.
 * Sets *job to the order, or to NULL if there is none (enum monarch_answer). A file that has no
 * entry is added to the catalog if policy allows that. The caller holds the writer's lock and the
 * pool's lock. */
enum monarch_answer monarch_order_handed(struct pool *p, struct monarch_catalog *c,
                                         struct handed *h, struct job **job);
/* Asks policy to order a fill of the file. Returns whether the caller must wake policy. */
int monarch_asks_policy(struct pool *p, const struct handed *h);
