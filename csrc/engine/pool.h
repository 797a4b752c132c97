/* The copying threads and what they share: queues, fills, grants. */
#pragma once

#include <pthread.h>

#include "copy/fill.h"
#include "engine/fair_queue.h"
#include "engine/queue.h"

struct pool;

/* The most demands without an order that a thread notes in one search for work. */
#define MONARCH_UNORDERED 8

/* The room that policy has granted. The pool's lock protects all fields but the atomic ones. While
 * a grant holds, only the engine's threads set entries' words to FILLING; while none holds, only
 * Python does. So neither side needs to see the other's decisions. */
struct grant {
    int holds;
    uint32_t iterations; /* iterations of the daemon's loop so far; atomic */
    uint32_t meets;      /* see monarch_engine_grant */
    uint32_t tiers;
    struct monarch_room room[MONARCH_MAX_TIERS]; /* what is left of each tier's room */
    uint64_t next_copy;                          /* number of the next copy */
    /* Per entry, whether this node keeps the file, and the peers that its fill asks. NULL: this
     * node is alone and keeps every file. */
    struct monarch_home *home;
    uint64_t homes;
    /* Fills that the engine has ordered since Python last took this list. */
    struct monarch_placed placed[MONARCH_PLACED];
    uint64_t placed_count;
    /* Per demand slot, the last demand without an order that a thread has looked at. No thread
     * looks at that demand again, unless `is_early` is set and a new grant is given. */
    uint64_t refused[MONARCH_DEMANDS];
    uint8_t is_early[MONARCH_DEMANDS];
    uint32_t leaves; /* futex, atomic: set to 1 when work is left to the daemon's loop, and to 0
                        when the loop's next rest ends */
};

/* Hash buckets in which queued orders and fills are found by entry: the order that a reader waits
 * for may be far back in its queue. */
#define MONARCH_BUCKETS 1024
/* Slots reserved for fills from the source, because other nodes wait for such fills. */
#define MONARCH_SLOTS_OF_SOURCE (MONARCH_FILL_SLOTS / 4)

/* Roles (bits): the work that a thread takes. DOES_ALL: all work of its way, except PAGE_INs.
 * DOES_DEMANDS: only work that readers wait for; a thread looks for it between two parts of other
 * work. READS_AHEAD: also PAGE_INs, which read copies into memory. Only every other thread of the
 * sources has this role, so that a tier that hangs never holds all threads. A wake-up names the
 * sleeping threads that it is for by the bits DOES_ALL and READS_AHEAD. */
enum monarch_role {
    MONARCH_DOES_ALL = 1,
    MONARCH_DOES_DEMANDS = 2,
    MONARCH_READS_AHEAD = 4,
};

/* Orders that were passed over because their peer had its share of the threads. */
struct late {
    struct queue of[MONARCH_MAX_PEERS];
    uint16_t peer[MONARCH_MAX_PEERS]; /* the first `peers` elements: the peers that may have such
                                         orders */
    unsigned peers;
};

/* Callbacks by which csrc/handover follows orders for which a reader's descriptor may wait. */
struct listener {
    /* Called when an order was made. Sets job->is_kept if a descriptor waits for the order. The
     * caller may hold the writer's lock. */
    void (*made)(struct pool *p, struct job *job);
    /* Called when the order is about to begin. Gives it the descriptor that waits for it, unless
     * the program has asked for that descriptor back. */
    void (*begins)(struct pool *p, struct job *job);
    /* Called when a grant was given. */
    void (*granted)(struct pool *p);
    /* Called before the engine's threads are joined. From then on no descriptor is taken. */
    void (*ends)(struct pool *p);
    /* Joins the listener's threads. Returns how many have not ended by `until`. */
    int (*joins)(struct pool *p, const struct timespec *until);
    /* Frees the listener. Called when no thread of the engine is left. */
    void (*frees)(struct pool *p);
};

struct handovers;
struct kept_table;

struct pool {
    struct monarch_engine shared; /* the first member: fill.c and job.c see only this one */
    pthread_mutex_t lock;
    struct queue urgent, in_use[MONARCH_WAYS], to_page_in, normal[MONARCH_WAYS], done, told;
    struct job *bucket[MONARCH_BUCKETS];
    struct fill *fills; /* the fills under way, in the order in which they are served */
    struct fill *begun[MONARCH_BUCKETS]; /* the fills of `fills`, by entry */
    struct late late[2];                 /* [0] normal, [1] in use */
    /* How many orders have no result that Python has taken: [0] normal orders, [1] orders for files
     * in use, each by way. PAGE_INs are not counted. */
    uint64_t pending[2][MONARCH_WAYS];
    uint32_t source_fills;             /* of the pending orders, FILLs from a source */
    uint32_t asked[MONARCH_MAX_PEERS]; /* of the pending orders, those that ask this peer first */
    uint64_t taken[MONARCH_DEMANDS];   /* per slot, the demand that a thread works on */
    unsigned next_demand, free_slots;
    uint32_t share[MONARCH_RANKS]; /* by rank, for the threads of both ways; see fair_queue.h */
    struct fair_queue fair[MONARCH_WAYS];
    int rung;                     /* the daemon was rung for results and has not taken them yet */
    int awaits_results;           /* the daemon has said that it waits for results */
    int slot[MONARCH_FILL_SLOTS]; /* the first `free_slots` are free */
    /* Per way, `width`: how many threads may at a time do work that no reader has demanded;
     * `unasked`: how many do so now. */
    uint32_t width[MONARCH_WAYS], unasked[MONARCH_WAYS];
    uint32_t unasked_at[MONARCH_MAX_PEERS]; /* of the `unasked` threads, those at this peer */
    struct grant grant;
    /* NULL while the engine takes no descriptors from readers. */
    const struct listener *listener;
    struct handovers *handovers;
    struct kept_table *kept;
    int rests; /* whether threads rest after each file; atomic */
    int roots[MONARCH_MAX_SOURCES], copies[MONARCH_MAX_TIERS];
    uint32_t stamped; /* a bit for each tier whose copies are stamped */
    uint64_t salt;
    /* Threads for the sources are started as they are needed: `threads` run (atomic), of at most
     * `most_threads`. */
    int threads, most_threads;
    int resting[2];          /* how many of these threads have no work: [1] with READS_AHEAD, [0]
                                without */
    int is_starting;         /* one of these threads is starting others */
    uint64_t start_after_ns; /* no thread is started before this time, because the last attempt
                                failed; 0: no limit */
    int peer_threads; /* how many threads are for peers: worker[most_threads] and the following */
    int at[MONARCH_MAX_PEERS]; /* how many of these threads are at each peer */
    int away;                  /* how many of these threads are at any peer at all */
    struct worker {
        struct pool *pool;
        uint32_t number; /* among those of its way */
        enum monarch_way way;
        int peer; /* the peer that it is at; -1: none */
        int is_at_work, is_unasked, unasked_peer;
        int awaits_reader; /* it left an order queued because a program is reading the file now */
        struct waiting unordered[MONARCH_UNORDERED]; /* readers whose files have no order */
        unsigned unordered_count;
        char *buffer; /* MONARCH_CHUNK bytes */
        pthread_t thread;
    } worker[];
};
