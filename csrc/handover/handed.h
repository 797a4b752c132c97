/* A file's descriptor that its reader has handed over, and the order to fill the file from it. */
#pragma once

#include "engine/schedule.h"

/* The number of a file that the catalog does not know. */
#define MONARCH_NO_ENTRY UINT64_MAX

struct handed {
    int fd;                     /* -1: it was given back, or handed to an order */
    int is_read;                /* its program has read all of it */
    uint64_t id;                /* number of its entry, or MONARCH_NO_ENTRY */
    uint64_t claim;             /* number under which its file is claimed */
    struct monarch_entry entry; /* of a file without an entry; else only `ino` is set */
    /* For a descriptor that waits for an order (kept.c). since_ns: when it was received. is_told:
     * policy knows of the file, since iteration `told_at` of the daemon's loop. is_ordered: the
     * order was made, and has not begun. */
    uint64_t since_ns;
    int is_told, is_ordered;
    uint32_t told_at;
    uint64_t renames;    /* count of directory renames before the path was looked up */
    struct handed *next; /* in the list of descriptors to be closed */
    char path[];
};

/* Describes a descriptor that was received. Returns NULL if it is not of a regular file or not of
 * the file at the path that came with it, or without memory; the descriptor then stays open. */
struct handed *monarch_new_handed(const struct pool *p, int fd,
                                  const struct monarch_handover *what);
/* Closes the descriptor, and ends the claim of its file. */
void monarch_give_back(struct pool *p, struct handed *h);
/* Gives the descriptor to the order, which fills the file from it. */
void monarch_hand_to(struct handed *h, struct job *job);

enum monarch_answer {
    MONARCH_TAKEN, /* *job is the order; NULL: another order fills the file, or no fill is needed */
    MONARCH_REFUSED, /* policy has to order the fill, or to take the file into the catalog */
    MONARCH_NOT_YET, /* policy is deciding: no grant holds, or its order is not queued yet */
    MONARCH_ANOTHERS /* the descriptor is of another file */
};

/* Finds or makes the order that fills the file. *job gets the order, which is in no queue, or NULL.
 * A file without an entry gets one, where policy allows it. The caller holds the writer's lock and
 * the pool's. */
enum monarch_answer monarch_order_handed(struct pool *p, struct monarch_catalog *c,
                                         struct handed *h, struct job **job);
/* Asks policy to order the file; returns whether policy must be woken. */
int monarch_asks_policy(struct pool *p, const struct handed *h);
