/* The copying threads and what they share: queues, fills, grants. */
#pragma once

#include <pthread.h>

#include "copy/fill.h"
#include "engine/fair_queue.h"
#include "engine/queue.h"

struct pool;

/* The most demands without an order that a thread notes at one look. */
#define MONARCH_UNORDERED 8

/* The room that policy has granted. All fields are under the pool's lock. While a grant holds, only
 * the engine's threads set entries' words to FILLING; without one, only Python does. So neither
 * needs to see the other's decisions. */
struct grant {
    int holds;
    uint32_t iterations; /* iterations of the daemon's loop so far; atomic */
    uint32_t meets;      /* see monarch_engine_grant */
    uint32_t tiers;
    struct monarch_room room[MONARCH_MAX_TIERS]; /* what is left of each tier's room */
    uint64_t next_copy;                          /* number of the next copy */
    /* Per entry, the peers that its fill asks. NULL: this node is alone and keeps every file. */
    struct monarch_home *home;
    uint64_t homes;
    /* Fills ordered since Python last took this list. */
    struct monarch_placed placed[MONARCH_PLACED];
    uint64_t placed_count;
    /* Per demand slot, the demand that a thread last looked at: no thread looks at it again. One
     * marked `is_early` is looked at again under the next grant. */
    uint64_t refused[MONARCH_DEMANDS];
    uint8_t is_early[MONARCH_DEMANDS];
    uint32_t leaves; /* futex, atomic: 1 once the daemon's loop has work, until it has rested */
};

/* Hash buckets that find queued orders and fills by entry: a reader may wait for an order far back
 * in its queue. */
#define MONARCH_BUCKETS 1024
/* Slots reserved for fills from the source, because other nodes wait for those. */
#define MONARCH_SLOTS_OF_SOURCE (MONARCH_FILL_SLOTS / 4)

/* The work that a thread takes. DOES_ALL: everything of its way. DOES_DEMANDS: only what readers
 * wait for; a thread takes it in the middle of other work. READS_AHEAD: also reads copies into
 * memory. Only every other thread of the sources does that, so that a tier that hangs never holds
 * all threads. DOES_ALL and READS_AHEAD are the bits by which a thread is woken. */
enum monarch_role {
    MONARCH_DOES_ALL = 1,
    MONARCH_DOES_DEMANDS = 2,
    MONARCH_READS_AHEAD = 4,
};

/* Orders that were passed over because their peer had its share of the threads. */
struct late {
    struct queue of[MONARCH_MAX_PEERS];
    uint16_t peer[MONARCH_MAX_PEERS]; /* the first `peers` of these may have such orders */
    unsigned peers;
};

/* Callbacks by which csrc/handover follows orders for which a reader's descriptor may wait. */
struct listener {
    /* An order was made: a descriptor may wait for it (job->is_kept). The caller may hold the
     * writer's lock. */
    void (*made)(struct pool *p, struct job *job);
    /* The order begins. It takes the descriptor that waits for it, unless the program has asked for
     * that descriptor back. */
    void (*begins)(struct pool *p, struct job *job);
    /* A grant was given. */
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
    struct monarch_engine shared; /* first: fill.c and job.c see only this */
    pthread_mutex_t lock;
    struct queue urgent, in_use[MONARCH_WAYS], to_page_in, normal[MONARCH_WAYS], done, told;
    struct job *bucket[MONARCH_BUCKETS];
    struct fill *fills;                  /* begun and not over, in the order in which they go on */
    struct fill *begun[MONARCH_BUCKETS]; /* the same, by entry */
    struct late late[2];                 /* [0] normal, [1] in use */
    /* Orders queued, running, or done and not yet reported, without PAGE_INs: [0] normal, [1] in
     * use. */
    uint64_t pending[2][MONARCH_WAYS];
    uint32_t source_fills;             /* of the pending ones, FILLs from a source */
    uint32_t asked[MONARCH_MAX_PEERS]; /* of the pending ones, those that ask this peer first */
    uint64_t taken[MONARCH_DEMANDS];   /* demands that a thread works on */
    unsigned next_demand, free_slots;
    uint32_t share[MONARCH_RANKS]; /* of each rank, for both kinds of threads; see fair_queue.h */
    struct fair_queue fair[MONARCH_WAYS];
    int rung;                     /* the daemon was rung for results and has not taken them yet */
    int awaits_results;           /* the daemon has said that it waits for results */
    int slot[MONARCH_FILL_SLOTS]; /* the first `free_slots` are free */
    /* Per way: how many threads may be at orders and blocks that no reader has demanded, and how
     * many are. */
    uint32_t width[MONARCH_WAYS], unasked[MONARCH_WAYS];
    uint32_t unasked_at[MONARCH_MAX_PEERS]; /* of the unasked ones: at this peer */
    struct grant grant;
    /* NULL while no reader's descriptor is taken. */
    const struct listener *listener;
    struct handovers *handovers;
    struct kept_table *kept;
    int rests; /* whether threads rest after each file; atomic */
    int roots[MONARCH_MAX_SOURCES], copies[MONARCH_MAX_TIERS];
    uint32_t stamped; /* a bit for each tier */
    uint64_t salt;
    /* Threads for the sources are started as they are needed: `threads` run (atomic), of at most
     * `most_threads`. */
    int threads, most_threads;
    int resting[2];            /* of them, those without work: [1] with READS_AHEAD, [0] without */
    int is_starting;           /* one of them starts others */
    uint64_t start_after_ns;   /* start none before this, as the last attempt failed; 0: no limit */
    int peer_threads;          /* worker[most_threads] and those behind it */
    int at[MONARCH_MAX_PEERS]; /* how many of them are at this peer */
    int away;                  /* how many of them are at any peer */
    struct worker {
        struct pool *pool;
        uint32_t number; /* among those of its way */
        enum monarch_way way;
        int peer; /* that it is at; -1: none */
        int is_at_work, is_unasked, unasked_peer;
        int awaits_reader; /* it passed over an order because a program reads the file just now */
        struct waiting unordered[MONARCH_UNORDERED]; /* readers whose files have no order */
        unsigned unordered_count;
        char *buffer; /* MONARCH_CHUNK bytes */
        pthread_t thread;
    } worker[];
};
