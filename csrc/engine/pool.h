/* The copying threads and their shared state: queues, fills, the grant. */
#pragma once

#include <pthread.h>

#include "copy/filling.h"
#include "engine/fair_queue.h"
#include "engine/queue.h"

struct pool;

/* The most demands without an order that a thread notes in one search for work. */
#define MONARCH_UNORDERED 8

/* The room that policy has granted. The pool's lock protects all fields except the atomic ones.
 * While there is a grant, only the engine's threads set entries to FILLING; while there is none,
 * only Python does. So neither needs to know what the other is about to decide. */
struct grant {
    int holds;
    uint32_t iterations; /* iterations of the daemon's loop so far; atomic */
    uint32_t meets;      /* a bit per source, see monarch_engine_grant */
    uint32_t tiers;
    struct monarch_room room[MONARCH_MAX_TIERS]; /* the room left in each tier */
    uint64_t next_copy;                          /* number of the next copy */
    /* For each entry, whether this node keeps the file, and the peers that its fill asks. NULL:
     * this node is alone and keeps every file. */
    struct monarch_home *home;
    uint64_t homes;
    /* Fills that the engine has ordered since Python last took this list. */
    struct monarch_placed placed[MONARCH_PLACED];
    uint64_t placed_count;
    /* For each demand slot, the last demand without an order that a thread has looked at. The
     * threads skip that demand from then on. After a new grant they look at it again only if
     * `is_early` is set: there was no grant when they looked, or the file was FILLING. */
    uint64_t refused[MONARCH_DEMANDS];
    uint8_t is_early[MONARCH_DEMANDS];
    uint32_t leaves; /* futex, atomic: set to 1 when work is left to the daemon's loop, and to 0
                        when the loop's next rest ends */
};

/* Number of hash buckets by which queued orders and fills are found by entry: an order for which a
 * reader waits may be far back in its queue. */
#define MONARCH_BUCKETS 1024
/* Slots reserved for fills from the source. Fills from peers must leave them free, because other
 * nodes wait for files that this node reads from the source. */
#define MONARCH_SLOTS_OF_SOURCE (MONARCH_FILL_SLOTS / 4)

/* Roles (bits): the work that a thread takes. DOES_ALL: all work of the thread's way, which is the
 * sources or the peers, except PAGE_INs. DOES_DEMANDS: only work that readers wait for; a thread
 * looks for it between two parts of other work. READS_AHEAD: also PAGE_INs, which read copies into
 * memory. Only every other thread for the sources has this role, so that a tier that hangs cannot
 * block all of them. A wake-up selects sleeping threads by the bits DOES_ALL and READS_AHEAD. */
enum monarch_role {
    MONARCH_DOES_ALL = 1,
    MONARCH_DOES_DEMANDS = 2,
    MONARCH_READS_AHEAD = 4,
};

/* Orders that were set aside because their peer already had its share of the threads. */
struct late {
    struct queue of[MONARCH_MAX_PEERS];
    /* the first `peers` elements are the peers that may have such orders */
    uint16_t peer[MONARCH_MAX_PEERS];
    unsigned peers;
};

/* Callbacks through which csrc/handover follows the orders for which a reader's descriptor may
 * wait. */
struct listener {
    /* Called for each new order. Sets job->is_kept if a descriptor waits for the order. The caller
     * may hold the writer's lock. */
    void (*made)(struct pool *p, struct job *job);
    /* Called before the order begins. Gives the order the descriptor that waits for it, unless the
     * program has asked for that descriptor back. */
    void (*begins)(struct pool *p, struct job *job);
    /* Called after a grant was given. */
    void (*granted)(struct pool *p);
    /* Called before the engine's threads are joined. The listener accepts no descriptor any
     * more. */
    void (*ends)(struct pool *p);
    /* Joins the listener's threads. Returns how many have not ended by `until`. */
    int (*joins)(struct pool *p, const struct timespec *until);
    /* Frees the listener. Called when all threads of the engine have ended. */
    void (*frees)(struct pool *p);
};

struct handovers;
struct kept_table;

struct pool {
    struct monarch_engine shared; /* the first member: fill.c and job.c access only this one */
    pthread_mutex_t lock;
    struct queue urgent, in_use[MONARCH_WAYS], to_page_in, normal[MONARCH_WAYS], done, told;
    struct job *bucket[MONARCH_BUCKETS];
    struct fill *fills; /* unfinished fills, in the order in which they are served */
    struct fill *begun[MONARCH_BUCKETS]; /* hash buckets of the same fills, by entry */
    struct late late[2];                 /* [0] normal orders, [1] orders for files in use */
    /* Number of orders whose results Python has not taken: [0] normal orders, [1] orders for files
     * in use, each by way. PAGE_INs are not counted. */
    uint64_t pending[2][MONARCH_WAYS];
    uint32_t source_fills; /* number of FILLs from a source among the orders in `pending` */
    /* by peer: number of orders in `pending` that ask it first */
    uint32_t asked[MONARCH_MAX_PEERS];
    uint64_t taken[MONARCH_DEMANDS]; /* for each slot, the demand that a thread is serving */
    unsigned next_demand, free_slots;
    /* for each rank, for the threads of both ways; see fair_queue.h */
    uint32_t share[MONARCH_RANKS];
    struct fair_queue fair[MONARCH_WAYS];
    int rung;           /* the daemon was rung for results, and has not taken them yet */
    int awaits_results; /* the daemon waits for results (monarch_engine_await) */
    /* slots of the fills segment; the first `free_slots` of them are free */
    int slot[MONARCH_FILL_SLOTS];
    /* For each way: `width` is how many threads may at a time do work for which no reader waits,
     * and `unasked` is how many do so now. */
    uint32_t width[MONARCH_WAYS], unasked[MONARCH_WAYS];
    /* by peer: how many of the `unasked` threads are at it */
    uint32_t unasked_at[MONARCH_MAX_PEERS];
    struct grant grant;
    /* NULL if the engine takes no descriptors from readers. */
    const struct listener *listener;
    struct handovers *handovers;
    struct kept_table *kept;
    int rests; /* atomic: whether threads sleep after each file, see monarch_engine_width */
    int roots[MONARCH_MAX_SOURCES], copies[MONARCH_MAX_TIERS];
    uint32_t stamped; /* a bit for each tier whose copies are stamped */
    uint64_t salt;
    /* Number of threads for the sources, which are started as they are needed: `threads` run
     * (atomic), `most_threads` may run. */
    int threads, most_threads;
    /* number of these threads that have no work: [1] with the role READS_AHEAD, [0] without it */
    int resting[2];
    int is_starting;         /* one of these threads is starting others right now */
    uint64_t start_after_ns; /* no thread is started before this time, because the last attempt
                                failed; 0: no limit */
    int peer_threads; /* number of threads for peers: worker[most_threads] and the following */
    int at[MONARCH_MAX_PEERS]; /* by peer: number of these threads that are at it */
    int away;                  /* number of these threads that are at any peer */
    struct worker {
        struct pool *pool;
        uint32_t number; /* index among the threads of its way */
        enum monarch_way way;
        int peer; /* the peer at which the thread is; -1: none */
        int is_at_work, is_unasked, unasked_peer;
        /* the thread has left an order queued, because a program is still reading the file */
        int awaits_reader;
        struct waiting unordered[MONARCH_UNORDERED]; /* readers found whose files have no order */
        unsigned unordered_count;
        char *buffer; /* MONARCH_CHUNK bytes */
        pthread_t thread;
    } worker[];
};
