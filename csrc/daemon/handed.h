/* The order to fill a file from the descriptor that its reader has handed over. */
#ifndef MONARCH_HANDED_H
#define MONARCH_HANDED_H

#include "schedule.h"

enum monarch_handed {
    MONARCH_TAKEN,   /* an order is found, or another one fills the file */
    MONARCH_REFUSED, /* policy has to order it */
    MONARCH_NOT_YET, /* policy decides just now: there is no grant, or not yet its order */
    MONARCH_ANOTHERS /* the descriptor is of another file */
};

/* In *job the order, in no queue; NULL: another one fills the file. The caller has the writer's
 * lock and the pool's. */
enum monarch_handed monarch_order_handed(struct pool *p, struct monarch_catalog *c, uint64_t id,
                                         uint64_t ino, struct job **job);
/* Whether policy is to be woken for a file that it has to order. */
int monarch_asks_policy(struct pool *p, uint64_t id);

#endif
