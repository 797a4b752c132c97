/* What the copying threads do next. All of it is under the pool's lock. */
#ifndef MONARCH_SCHEDULE_H
#define MONARCH_SCHEDULE_H

#include <pthread.h>

#include "engine.h"
#include "queue.h"
#include "turns.h"

/* Orders of the queues are found by entry in buckets: a reader may wait for one far behind. */
#define MONARCH_BUCKETS 1024
/* Slots that fills from peers leave to those from the source, which other nodes wait for. */
#define MONARCH_SLOTS_OF_SOURCE (MONARCH_FILL_SLOTS / 4)

/* What a thread may do of its way: everything; what readers wait for, and removals; or, in the
 * middle of something else, what readers wait for. Every other thread of the sources' may read
 * copies into memory beside it, and no other does: a tier that hangs keeps whoever reads there, and
 * never all. All but DEMANDS are bits by which a thread is woken. */
enum monarch_role {
    MONARCH_DOES_ALL = 1,
    MONARCH_DOES_AWAITED = 2,
    MONARCH_ANYBODY = MONARCH_DOES_ALL | MONARCH_DOES_AWAITED,
    MONARCH_DOES_DEMANDS = 4,
    MONARCH_READS_AHEAD = 8,
};

/* Orders whose turn came when their peer had its share of the threads. */
struct late {
    struct queue of[MONARCH_MAX_PEERS];
    uint16_t peer[MONARCH_MAX_PEERS]; /* the first `peers` may have some */
    unsigned peers;
};

struct pool {
    struct monarch_engine shared; /* first: fill.c and job.c see only this */
    pthread_mutex_t lock;
    struct queue urgent, in_use[MONARCH_WAYS], to_page_in, normal[MONARCH_WAYS], done, told;
    struct job *bucket[MONARCH_BUCKETS];
    struct fill *fills;  /* begun and not over, in the order in which they go on */
    struct late late[2]; /* normal, in use */
    /* Queued, running, or done and not yet told: normal, in use; no PAGE_IN. */
    uint64_t pending[2][MONARCH_WAYS];
    uint32_t asked[MONARCH_MAX_PEERS]; /* of the pending ones, those that ask this peer first */
    uint64_t taken[MONARCH_DEMANDS];   /* demands that a thread works on */
    unsigned next_demand, free_slots;
    uint32_t share[MONARCH_RANKS]; /* of each rank in both kinds of threads, see turns.h */
    struct turns turns[MONARCH_WAYS];
    int rung; /* the daemon has been told of what is done, and has not taken it */
    int slot[MONARCH_FILL_SLOTS]; /* the first `free_slots` are free */
    uint32_t width;               /* atomic: threads that do what nobody waits for */
    int roots[MONARCH_MAX_SOURCES], copies[MONARCH_MAX_TIERS];
    uint32_t stamped; /* a bit for each tier */
    uint64_t salt;
    int threads, peer_threads; /* the latter are the last ones */
    int at[MONARCH_MAX_PEERS]; /* so many of them are at this peer, */
    int away;                  /* and at any */
    struct worker {
        struct pool *pool;
        uint32_t number; /* among those of its way */
        enum monarch_way way;
        int peer; /* that it is at; -1: none */
        pthread_t thread;
    } worker[];
};

/* --- orders by entry --- */

/* Whether a reader may wait for the order: those that have not begun can be found by entry. */
int monarch_is_awaited(const struct job *job);
void monarch_remember(struct pool *p, struct job *job);

/* --- fills under way --- */

int monarch_is_claimed(const struct fill *f, uint64_t unit);
void monarch_claim(struct fill *f, uint64_t unit);
void monarch_add_fill(struct pool *p, struct fill *f);
void monarch_remove_fill(struct pool *p, const struct fill *f);

/* --- what is next --- */

struct work {
    struct job *job;   /* to begin or to do, or */
    struct fill *fill; /* a unit or a block of it */
    uint64_t unit, block;
    int is_unit;
};

enum monarch_way monarch_way_of(const struct job *job);
/* What it may do now, as bits: what nobody waits for is done by as many threads as the width says.
 */
uint32_t monarch_roles_of(const struct pool *p, const struct worker *me);
/* Whether there is any of that, and then what is first. Who does more than demands has ended what
 * it did before. */
int monarch_find_work(struct pool *p, struct worker *me, uint32_t roles, struct work *w);
/* Who could do some of what there is, as bits of roles; 0: there is nothing. Of what lies ahead of
 * readers it may say too much. */
uint32_t monarch_whom_it_needs(struct pool *p, enum monarch_way way);

#endif
