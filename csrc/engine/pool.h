/* The copying threads and their shared state: queues, fills, the grant. */
#pragma once

#include <pthread.h>

#include "copy/filling.h"
#include "engine/fair_queue.h"

struct pool;

/* An order is in at most one queue. */
struct queue {
    struct job *first, *last;
    uint64_t length;
};

/* In one search for work, a thread notes at most this many demands whose files have no order. */
#define MONARCH_UNORDERED 8

/* The room that policy has granted. The pool's lock protects all fields except the atomic ones.
 * While there is a grant, only the engine's threads set entries to FILLING. While there is no
 * grant, only Python does. So the engine and Python never decide about the same entry at the same
 * time. */
struct grant {
    int holds;           /* whether there is a grant now */
    uint32_t iterations; /* iterations of the daemon's loop so far; atomic */
    /* a bit per source: whether the engine may add the source's files to the catalog */
    uint32_t meets;
    uint32_t tiers;
    struct monarch_room room[MONARCH_MAX_TIERS]; /* the room left in each tier */
    uint64_t next_copy; /* number of the next copy that the engine orders */
    /* For each entry: where this node keeps the file, and which peers a fill of the file asks.
     * NULL: this node is alone and keeps every file in its tiers. */
    struct monarch_home *home;
    uint64_t homes;
    /* the fills that the engine has ordered since Python last took this list */
    struct monarch_placed placed[MONARCH_PLACED];
    uint64_t placed_count;
    /* By demand slot: the latest demand in this slot whose file had no order when a thread looked
     * at the demand. Threads skip this demand from then on, even if a fill was ordered. */
    uint64_t refused[MONARCH_DEMANDS];
    /* By demand slot: 1 if the threads skip the demand in `refused` only until the next grant. That
     * is the case if there was no grant, or the file was FILLING, when a thread looked at the
     * demand. */
    uint8_t is_early[MONARCH_DEMANDS];
    /* futex, atomic: set to 1 when the engine leaves work to the daemon's loop. The loop sleeps on
     * it between two iterations, and resets it to 0 when that sleep ends */
    uint32_t leaves;
};

/* Number of buckets in each hash table in which queued orders or fills are looked up by entry. A
 * search through the queues would take too long: the order that a reader waits for may be far from
 * the front. */
#define MONARCH_BUCKETS 1024
/* Number of slots reserved for fills from the source. Fills from peers must leave them free,
 * because other nodes wait for files that this node reads from the source. */
#define MONARCH_SLOTS_OF_SOURCE (MONARCH_FILL_SLOTS / 4)

/* Roles (bits): the work that a thread takes. A wake-up selects sleeping threads by the bits
 * DOES_ALL and READS_AHEAD. */
enum monarch_role {
    /* all work whose bytes come from the thread's origin (the sources or the peers), except
     * PAGE_INs */
    MONARCH_DOES_ALL = 1,
    /* only work that readers wait for. A thread that looks for work between two parts of other work
     * has only this role. */
    MONARCH_DOES_DEMANDS = 2,
    /* PAGE_INs, which read copies into memory. Only half of the threads for the sources have this
     * role. A PAGE_IN may hang if a tier hangs, so the other half must stay free. */
    MONARCH_READS_AHEAD = 4,
};

/* Orders that were set aside. The number of threads that may ask one peer at the same time is
 * limited (can_ask_unasked in schedule.c). An order is set aside while the peer that it asks has
 * reached this limit. */
struct late {
    struct queue of[MONARCH_MAX_PEERS]; /* by peer: the orders that were set aside */
    /* Numbers of the peers whose queue may contain orders. Only the first `peers` elements are
     * used. */
    uint16_t peer[MONARCH_MAX_PEERS];
    unsigned peers;
};

/* Callbacks of csrc/handover. Readers hand over descriptors, and csrc/handover keeps these
 * descriptors until orders need them. */
struct listener {
    /* Called for each new order. Sets job->is_kept if a descriptor waits for the order. The caller
     * may hold the writer's lock. */
    void (*made)(struct pool *p, struct job *job);
    /* Called before the order begins. Gives the waiting descriptor to the order, unless the program
     * has asked the daemon to close the descriptor. */
    void (*begins)(struct pool *p, struct job *job);
    /* Called after a grant was given. */
    void (*granted)(struct pool *p);
    /* Called before the engine's threads are joined. From then on, the listener accepts no
     * descriptors. */
    void (*ends)(struct pool *p);
    /* Joins the listener's threads. Returns how many have not ended by `until`. */
    int (*joins)(struct pool *p, const struct timespec *until);
    /* Frees the listener. Called when all threads of the engine have ended. */
    void (*frees)(struct pool *p);
};

struct handovers;
struct kept_table;

struct pool {
    /* must be the first member, because its address is used as the pool's address */
    struct monarch_engine shared;
    pthread_mutex_t lock;
    /* done: orders that have a result; told: orders whose result Python has taken */
    struct queue urgent, in_use[MONARCH_ORIGINS], to_page_in, normal[MONARCH_ORIGINS], done, told;
    struct job *bucket[MONARCH_BUCKETS];
    struct fill *fills; /* unfinished fills, in the order in which they are served */
    struct fill *begun[MONARCH_BUCKETS]; /* the fills of `fills`, in hash buckets by entry */
    struct late late[2]; /* late[0]: normal orders; late[1]: orders for files in use */
    /* Number of orders whose results Python has not taken. PAGE_INs are not counted. The first
     * index is 0 for normal orders and 1 for orders for files in use; the second index is an enum
     * monarch_origin. */
    uint64_t pending[2][MONARCH_ORIGINS];
    uint32_t source_fills; /* number of FILLs from a source among the orders in `pending` */
    /* by peer: number of orders in `pending` that ask this peer first */
    uint32_t asked[MONARCH_MAX_PEERS];
    uint64_t taken[MONARCH_DEMANDS]; /* by demand slot: the demand that a thread is serving */
    unsigned next_demand, free_slots;
    /* by rank: the rank's share of the threads of each origin; see fair_queue.h */
    uint32_t share[MONARCH_RANKS];
    struct fair_queue fair[MONARCH_ORIGINS];
    int rung;           /* the daemon was rung for results, and has not taken them yet */
    int awaits_results; /* the daemon waits for results (monarch_engine_await) */
    /* a stack: its first `free_slots` elements are the free slots of the fills segment */
    int slot[MONARCH_FILL_SLOTS];
    /* Work is called unasked if no reader waits for it. Both fields are indexed by enum
     * monarch_origin. width: how many threads at a time may do unasked work. unasked: how many
     * threads do unasked work now. */
    uint32_t width[MONARCH_ORIGINS], unasked[MONARCH_ORIGINS];
    /* by peer: how many of the threads counted in `unasked` get their bytes from this peer */
    uint32_t unasked_at[MONARCH_MAX_PEERS];
    struct grant grant;
    /* NULL if the engine accepts no descriptors from readers. */
    const struct listener *listener;
    struct handovers *handovers;
    struct kept_table *kept;
    int rests; /* atomic: whether threads for the sources sleep after work (monarch_engine_width) */
    int roots[MONARCH_MAX_SOURCES], copies[MONARCH_MAX_TIERS];
    uint32_t stamped; /* a bit for each tier whose copies are stamped */
    uint64_t salt;
    /* Threads for the sources are started as they are needed. threads: how many run (atomic).
     * most_threads: how many may run. */
    int threads, most_threads;
    /* number of idle threads among those for the sources: [1] with the role READS_AHEAD, [0]
     * without it */
    int resting[2];
    int is_starting; /* a thread for the sources is starting others right now */
    /* if the last attempt to start a thread failed: the earliest time of the next attempt; else
     * 0 */
    uint64_t start_after_ns;
    /* number of threads for peers; these are worker[most_threads] and the following elements */
    int peer_threads;
    int at[MONARCH_MAX_PEERS]; /* by peer: number of threads whose work asks this peer */
    int away;                  /* number of threads whose work asks any peer: the sum of `at` */
    struct worker {
        struct pool *pool;
        uint32_t number; /* index among the threads with the same origin */
        enum monarch_origin origin;
        int peer; /* the peer that the thread's work asks; -1: none */
        int is_at_work, is_unasked, unasked_peer;
        /* the thread has left an order queued, because a program still reads the order's file */
        int awaits_reader;
        /* readers that this thread's last search for work has found, and whose files have no
         * order */
        struct waiting unordered[MONARCH_UNORDERED];
        unsigned unordered_count;
        char *buffer; /* MONARCH_CHUNK bytes */
        pthread_t thread;
    } worker[];
};
