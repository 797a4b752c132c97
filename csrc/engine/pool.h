/* The copying threads and what they share: queues, fills, grants. */
#ifndef MONARCH_POOL_H
#define MONARCH_POOL_H

#include <pthread.h>

#include "copy/fill.h"
#include "engine/queue.h"
#include "engine/turns.h"

struct pool;

/* The most demands without an order that a thread notes at one look. */
#define MONARCH_UNORDERED 8

/* All of it is under the pool's lock. While a grant holds, words of entries become FILLING by the
 * threads alone; without one, by Python alone. So neither needs to see the other's decisions. */
struct grant {
    int holds;
    uint32_t turns; /* of the daemon's loop so far, atomic */
    uint32_t meets; /* see monarch_engine_grant */
    uint32_t tiers;
    struct monarch_room room[MONARCH_MAX_TIERS]; /* what is left of it */
    uint64_t next_copy;                          /* the next one's number */
    /* By entry, whom a fill asks; NULL: this node is alone and keeps every file. */
    struct monarch_home *home;
    uint64_t homes;
    /* Ordered since Python last asked. */
    struct monarch_placed placed[MONARCH_PLACED];
    uint64_t placed_count;
    /* Demands, at their places, that a thread has looked at. No thread looks at one again; at one
     * that is early, a thread does so under the next grant. */
    uint64_t refused[MONARCH_DEMANDS];
    uint8_t is_early[MONARCH_DEMANDS];
    uint32_t leaves; /* the loop has something to do, and has not rested since: a futex, atomic */
};

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

/* Who is told of orders for which a reader's descriptor may wait (csrc/handover). */
struct listener {
    /* An order is made: a descriptor may wait for it (job->is_kept). The caller may have the
     * writer's lock. */
    void (*made)(struct pool *p, struct job *job);
    /* The order begins: it takes the descriptor that waits for it, unless the program has asked for
     * that back. */
    void (*begins)(struct pool *p, struct job *job);
    /* A grant has just been given. */
    void (*granted)(struct pool *p);
    /* Before the engine's threads are joined: nothing is taken any more. */
    void (*ends)(struct pool *p);
    /* Returns how many threads have not ended by then. */
    int (*joins)(struct pool *p, const struct timespec *until);
    /* No thread of the engine is left: the listener goes. */
    void (*frees)(struct pool *p);
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
    const struct listener *listener;
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

#endif
