/* A file's descriptor that its reader has handed over, and the order to fill the file from it. */
#ifndef MONARCH_HANDED_H
#define MONARCH_HANDED_H

#include "engine/schedule.h"

/* The catalog does not know the file. */
#define MONARCH_NO_ENTRY UINT64_MAX

struct handed {
    int fd;                     /* -1: it was given back */
    int is_read;                /* all of it, by its program */
    uint64_t id;                /* of its entry, or MONARCH_NO_ENTRY */
    uint64_t claim;             /* the number that its claim has */
    struct monarch_entry entry; /* of a file without an entry; else only the inode's number */
    /* While it waits for an order (kept.c): since when; whether policy knows of it, and since which
     * of its turns; whether there is one. */
    uint64_t since_ns;
    int is_told, is_ordered;
    uint32_t told_at;
    uint64_t renames;    /* of directories, before the path was looked at */
    struct handed *next; /* of those that are to be closed */
    char path[];
};

/* NULL: it is none of a file of the sources, or there is no memory; the descriptor stays open. */
struct handed *monarch_new_handed(const struct pool *p, int fd,
                                  const struct monarch_handover *what);
/* Closes the descriptor. */
void monarch_give_back(struct pool *p, struct handed *h);
/* The order fills the file from the descriptor. */
void monarch_hand_to(struct handed *h, struct job *job);

enum monarch_answer {
    MONARCH_TAKEN,   /* an order is found, or another one fills the file */
    MONARCH_REFUSED, /* policy has to order it, or to take the file into the catalog */
    MONARCH_NOT_YET, /* policy decides just now: there is no grant, or not yet its order */
    MONARCH_ANOTHERS /* the descriptor is of another file */
};

/* In *job the order, in no queue; NULL: another one fills the file. A file without an entry gets
 * one, where policy allows it. The caller has the writer's lock and the pool's. */
enum monarch_answer monarch_order_handed(struct pool *p, struct monarch_catalog *c,
                                         struct handed *h, struct job **job);
/* Whether policy is to be woken for a file that it has to order. */
int monarch_asks_policy(struct pool *p, const struct handed *h);

#endif
