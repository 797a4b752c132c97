/* The copying threads and the state that they share: queues of orders, unfinished fills, and the
 * grant. */
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

/* Maximum number of demands without an order for their file that a thread notes in one search for
 * work. */
#define MONARCH_UNORDERED 8

/* The room in the tiers in which the engine's threads may order fills themselves. The pool's lock
 * protects the fields that are not atomic. During a grant, only the engine's threads set entries to
 * FILLING; otherwise, only Python does. So the two never decide about an entry at the same time. */
struct grant {
    int holds;           /* whether there is a grant now */
    uint32_t iterations; /* iterations of the daemon's loop so far; atomic */
    /* a bit per source: whether the engine may add the source's files to the catalog */
    uint32_t meets;
    uint32_t tiers;
    struct monarch_room room[MONARCH_MAX_TIERS]; /* the room left in each tier */
    uint64_t next_copy; /* number of the next copy that the engine orders */
    /* By entry: where this node keeps the file, and which peers a fill of it asks. NULL: this node
     * is alone, and keeps each file in its tiers. */
    struct monarch_home *home;
    uint64_t homes;
    /* the fills that the engine has ordered since Python last took this list */
    struct monarch_placed placed[MONARCH_PLACED];
    uint64_t placed_count;
    /* By demand slot: the demand for which a thread last tried to order a fill. Threads do not try
     * again for the same demand. */
    uint64_t refused[MONARCH_DEMANDS];
    /* By demand slot: the demand for which a thread last tried to order a fill. Threads try only
     * once for a demand, but see is_early. */
    uint8_t is_early[MONARCH_DEMANDS];
    /* By demand slot: 1 if the last try was too early, because there was no grant, or the file was
     * FILLING. Then threads may try again after the next grant. */
    uint32_t leaves;
};

/* Atomic, a futex: set to 1 when there is work that only the daemon's loop can do. Between two
 * iterations, the loop sleeps on this futex. After the sleep, it sets the futex to 0. */
#define MONARCH_BUCKETS 1024
/* Number of buckets in each of the two hash tables by entry: of queued orders, and of fills. To
 * search a queue would take too long: the order for which a reader waits may be far from its
 * front. */
#define MONARCH_SLOTS_OF_SOURCE (MONARCH_FILL_SLOTS / 4)

/* Roles: bits that say which kinds of work a thread does. A wake-up selects sleeping threads by the
 * bits DOES_ALL and READS_AHEAD. */
enum monarch_role {
    /* all work whose bytes come from the thread's origin (the sources or the peers), except
     * PAGE_INs */
    MONARCH_DOES_ALL = 1,
    /* only work that readers wait for. A thread that interrupts its current work to look for more
     * urgent work uses this role alone. */
    MONARCH_DOES_DEMANDS = 2,
    /* PAGE_INs, which read copies into memory. Only every second thread for the sources has this
     * role. If a tier hangs, its PAGE_INs may hang too, so the other threads must stay free. */
    MONARCH_READS_AHEAD = 4,
};

/* Orders that were set aside. Only a limited number of threads may ask one peer at the same time
 * (can_ask_unasked in schedule.c). If a peer has reached this limit, find_order sets aside the
 * orders that ask this peer, and takes orders for other peers. */
struct late {
    struct queue of[MONARCH_MAX_PEERS]; /* by peer: the orders that were set aside */
    /* Numbers of the peers whose queue may contain orders. Only the first `peers` elements are
     * used. */
    uint16_t peer[MONARCH_MAX_PEERS];
    unsigned peers;
};

/* Callbacks of csrc/handover. Readers send the descriptors of files that they have read, and
 * csrc/handover keeps these descriptors until orders need them. */
struct listener {
    /* Called for each new order. Sets job->is_kept if csrc/handover keeps a descriptor of the
     * order's file. The caller may hold the writer's lock. */
    void (*made)(struct pool *p, struct job *job);
    /* Called before an order with is_kept begins. Gives the kept descriptor to the order. Does not
     * do so if the program has asked the daemon to close this descriptor. */
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
    /* must be the first member, because a pointer to it is cast to a pointer to the pool */
    struct monarch_engine shared;
    pthread_mutex_t lock;
    /* done: orders that have a result; told: orders whose result Python has taken */
    struct queue urgent, in_use[MONARCH_ORIGINS], to_page_in, normal[MONARCH_ORIGINS], done, told;
    struct job *bucket[MONARCH_BUCKETS];
    struct fill *fills; /* unfinished fills, in the sequence in which they are served */
    struct fill *begun[MONARCH_BUCKETS]; /* the fills of `fills`, in hash buckets by entry */
    struct late late[2]; /* late[0]: normal orders; late[1]: orders for files in use */
    /* Number of orders whose results Python has not taken. PAGE_INs are not counted. First index: 1
     * for orders whose files are in use, else 0. Second index: enum monarch_origin. */
    uint64_t pending[2][MONARCH_ORIGINS];
    uint32_t source_fills; /* number of FILLs from a source among the orders in `pending` */
    /* by peer: number of orders in `pending` that ask this peer first */
    uint32_t asked[MONARCH_MAX_PEERS];
    uint64_t taken[MONARCH_DEMANDS]; /* by demand slot: the demand that a thread is serving */
    unsigned next_demand, free_slots;
    /* by rank: the rank's share, which is the same for both origins; see fair_queue.h */
    uint32_t share[MONARCH_RANKS];
    struct fair_queue fair[MONARCH_ORIGINS];
    int rung;           /* the daemon was woken for results, and has not taken them yet */
    int awaits_results; /* the daemon waits for results (monarch_engine_await) */
    /* a stack: its first `free_slots` elements are the free slots of the fills segment */
    int slot[MONARCH_FILL_SLOTS];
    /* Both are indexed by enum monarch_origin. Unasked work is work that no reader waits for.
     * unasked: how many threads do unasked work now. width: how many may do so at the same time. */
    uint32_t width[MONARCH_ORIGINS], unasked[MONARCH_ORIGINS];
    /* by peer: how many of the threads counted in `unasked` get their bytes from this peer */
    uint32_t unasked_at[MONARCH_MAX_PEERS];
    struct grant grant;
    /* NULL if the engine accepts no descriptors from readers. */
    const struct listener *listener;
    struct handovers *handovers;
    struct kept_table *kept;
    /* atomic: whether threads for the sources sleep after each piece of unasked work
     * (monarch_engine_width) */
    int rests;
    int roots[MONARCH_MAX_SOURCES], copies[MONARCH_MAX_TIERS];
    uint32_t stamped; /* a bit per tier, set if the tier's copies are stamped (monarch_stamp) */
    uint64_t salt;
    /* Threads for the sources are started as they are needed. threads: how many run (atomic).
     * most_threads: how many may run. */
    int threads, most_threads;
    /* number of idle threads for the sources: resting[1] with the role READS_AHEAD, resting[0]
     * without it */
    int resting[2];
    int is_starting; /* a thread for the sources is starting others right now */
    /* the earliest time of the next attempt to start a thread, if the last attempt failed; else
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
        /* the thread's last search has left an order queued, because a program is reading the
         * order's file */
        int awaits_reader;
        /* waiting readers that this thread's last search for work has found, and whose files have
         * no order */
        struct waiting unordered[MONARCH_UNORDERED];
        unsigned unordered_count;
        char *buffer; /* MONARCH_CHUNK bytes */
        pthread_t thread;
    } worker[];
};
