/* What the copying threads do next. All of it is under the pool's lock. */
#ifndef MONARCH_SCHEDULE_H
#define MONARCH_SCHEDULE_H

#include <pthread.h>

#include "engine/engine.h"
#include "engine/grant.h"
#include "engine/queue.h"
#include "engine/turns.h"

/* Orders of the queues, and fills, are found by entry in buckets: a reader may wait for one far
 * behind. */
#define MONARCH_BUCKETS 1024
/* Slots that fills from peers leave to those from the source, which other nodes wait for. */
#define MONARCH_SLOTS_OF_SOURCE (MONARCH_FILL_SLOTS / 4)

/* The work that a thread takes: all of its way's; or, in the middle of something else, only what
 * readers wait for. Every other thread of the sources' may read copies into memory beside it, and
 * no other does: a tier that hangs keeps whoever reads there, and never all. ALL and READS_AHEAD
 * are bits by which a thread is woken. */
enum monarch_role {
    MONARCH_DOES_ALL = 1,
    MONARCH_DOES_DEMANDS = 2,
    MONARCH_READS_AHEAD = 4,
};

/* Orders whose turn came when their peer had its share of the threads. */
struct late {
    struct queue of[MONARCH_MAX_PEERS];
    uint16_t peer[MONARCH_MAX_PEERS]; /* the first `peers` may have some */
    unsigned peers;
};

struct handovers;
struct kept_table;

struct pool {
    struct monarch_engine shared; /* first: fill.c and job.c see only this */
    pthread_mutex_t lock;
    struct queue urgent, in_use[MONARCH_WAYS], to_page_in, normal[MONARCH_WAYS], done, told;
    struct job *bucket[MONARCH_BUCKETS];
    struct fill *fills;                  /* begun and not over, in the order in which they go on */
    struct fill *begun[MONARCH_BUCKETS]; /* the same, by entry */
    struct late late[2];                 /* normal, in use */
    /* Queued, running, or done and not yet told: normal, in use; no PAGE_IN. */
    uint64_t pending[2][MONARCH_WAYS];
    uint32_t source_fills;             /* of the pending ones, FILLs from a source */
    uint32_t asked[MONARCH_MAX_PEERS]; /* of the pending ones, those that ask this peer first */
    uint64_t taken[MONARCH_DEMANDS];   /* demands that a thread works on */
    unsigned next_demand, free_slots;
    uint32_t share[MONARCH_RANKS]; /* of each rank in both kinds of threads, see turns.h */
    struct turns turns[MONARCH_WAYS];
    int rung;           /* the daemon has been told of what is done, and has not taken it */
    int awaits_results; /* it has said so */
    int slot[MONARCH_FILL_SLOTS]; /* the first `free_slots` are free */
    /* At most `width` threads of a way are at orders and blocks that no reader has demanded; so
     * many are. */
    uint32_t width[MONARCH_WAYS], unasked[MONARCH_WAYS];
    uint32_t unasked_at[MONARCH_MAX_PEERS]; /* of those from peers: at this one */
    struct grant grant;
    /* NULL: no reader's descriptor is taken. */
    struct handovers *handovers;
    struct kept_table *kept;
    int rests; /* after each file; atomic */
    int roots[MONARCH_MAX_SOURCES], copies[MONARCH_MAX_TIERS];
    uint32_t stamped; /* a bit for each tier */
    uint64_t salt;
    /* Threads of the sources' are started when they are needed: so many run (atomic), of at most
     * so many. */
    int threads, most_threads;
    int resting[2];            /* of them: those of each kind (READS_AHEAD) without work */
    int is_starting;           /* one of them starts others */
    uint64_t start_after_ns;   /* none could be started a moment ago */
    int peer_threads;          /* workers from most_threads on */
    int at[MONARCH_MAX_PEERS]; /* so many of them are at this peer, */
    int away;                  /* and at any */
    struct worker {
        struct pool *pool;
        uint32_t number; /* among those of its way */
        enum monarch_way way;
        int peer; /* that it is at; -1: none */
        int is_at_work, is_unasked, unasked_peer;
        int awaits_reader; /* it left an order whose file a program reads just now */
        struct waiting unordered[MONARCH_UNORDERED]; /* readers whose files have no order */
        unsigned unordered_count;
        char *buffer; /* MONARCH_CHUNK bytes */
        pthread_t thread;
    } worker[];
};

/* --- orders by entry --- */

/* Whether a reader may wait for the order: those that have not begun can be found by entry. */
int monarch_is_awaited(const struct job *job);
void monarch_remember(struct pool *p, struct job *job);
/* The order to fill this entry that no thread has begun; NULL for none. */
struct job *monarch_queued_fill(const struct pool *p, uint64_t id);
/* Whether there is one to fill or to check it. */
int monarch_has_order(const struct pool *p, uint64_t id);
/* Removes an order from its queue, and from those that are found by entry. */
void monarch_unqueue(struct pool *p, struct job *job);

/* Readers no longer need the map of its fill; an order without a slot has none to give back. */
void monarch_free_slot(struct pool *p, struct job *job);

/* --- fills under way --- */

int monarch_is_claimed(const struct fill *f, uint64_t unit);
void monarch_claim(struct fill *f, uint64_t unit);
/* NULL for none. */
struct fill *monarch_fill_of(const struct pool *p, uint64_t id);
void monarch_add_fill(struct pool *p, struct fill *f);
void monarch_remove_fill(struct pool *p, const struct fill *f);

/* --- what is next --- */

struct work {
    struct job *job;   /* to begin or to do, or */
    struct fill *fill; /* a unit or a block of it */
    uint64_t unit, block;
    int is_unit;
    int leaves_nobody; /* no thread of the caller's kind is without work now */
};

enum monarch_way monarch_way_of(const struct job *job);
/* What it may do when it has nothing to do, as bits. */
uint32_t monarch_roles_of(const struct worker *me);
/* Whether there is any of that, and then what is first. Who does more than demands has ended what
 * it did before. */
int monarch_find_work(struct pool *p, struct worker *me, uint32_t roles, struct work *w);
/* Who could do some of what there is, as bits of roles; 0: there is nothing. Of what lies ahead of
 * readers it may say too much. */
uint32_t monarch_whom_it_needs(struct pool *p, enum monarch_way way);

#endif
