/* One peer of this node: keeps idle links to the peer, shares links among threads, and replaces
 * broken links. A link is a connection over which this node requests files. Python makes the
 * connections, and decides whether to suppress requests to the peer for a while
 * (monarch_py/peers/peer.py). For a fetch over a working link, Python is not called, so the fetch
 * never waits for the interpreter. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include "peers/connection.h"

/* Maximum number of idle links that are kept open. A thread that fetches needs only one link. */
#define IDLE_LINKS 16
/* An answer is called large from this size [bytes] on. */
#define LARGE_BYTES (1024 * 1024)
/* Number of slots. A thread that requests a large answer must first take a slot, which limits the
 * number of large answers at the same time. With more, no answer would arrive sooner, but the
 * threads of both nodes would wake more often, for fewer bytes each time. If a reader waits for an
 * answer, no slot is needed. */
#define LARGE_AT_ONCE 4
/* Maximum number of large answers that are requested on one link at the same time. With two, the
 * second request arrives before the first answer is sent completely. So the sender's socket never
 * runs empty, which halves the cost of sending. Also, two links then suffice for the answers of all
 * slots. So only two of the peer's threads stay with these links (can_stay in server.c), and the
 * others serve all other connections. */
#define IN_LINE 2
/* A thread stops waiting for a slot, and continues without one, in two cases. Either no large
 * answer has arrived for this long [ns], perhaps because the peer waits for the source. Or the
 * thread has waited for twice this time. SLOT_NS and the time limit for an answer's first byte are
 * less than 2 s together. No reader should wait longer before it reads the source itself. */
#define SLOT_NS 500000000ULL
/* If no link is idle, a thread waits at most this long [ns] until another thread releases one. Then
 * it connects a new link. Connecting, the wait for an answer's first byte, and each later wait have
 * limits of their own. LINK_NS and any two of these limits are less than 2 s together, because no
 * reader should wait longer. */
#define LINK_NS 50000000ULL
/* All waits for links are added up (waited_ns). If the sum reaches this many times the duration of
 * the last connect, a waiting thread connects another link, even before LINK_NS has passed. */
#define WAITS_PER_CONNECT 8
/* If nodes are started together, all of them are serving after this time [ns]. */
#define START_NS 10000000000ULL

typedef struct monarch_peer peer;

/* A thread that uses a link or waits for one. tag: the number of its request. follower: the thread
 * whose answer comes next on the same link, and which gets the link after this thread. The peer's
 * lock protects all fields. */
struct use {
    struct use *next;
    struct monarch_peer_link *link;
    uint64_t tag;
    int has_asked, can_be_followed;
    /* the thread waits until it gets the link, or until the link is found broken */
    int is_following;
    int has_passed; /* the thread has passed its link to the follower */
    struct use *follower;
};

struct monarch_peer {
    monarch_peer_connect connect;
    monarch_peer_report report;
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t slot_free, handed, link_free;
    /* All under the lock. slots: number of slots in use. waiting: number of threads that wait for a
     * slot. passed: number of slots that were released to waiting threads, but not taken by them
     * yet. */
    unsigned slots, waiting, passed;
    uint64_t came_ns; /* when the last answer to a request with a slot arrived; under the lock */
    unsigned idle;
    /* All under the lock. in_use: number of threads that have a link or are connecting one.
     * connecting: number of those that are connecting one. connect_ns: duration of the last
     * connect. waited_ns: how long all threads together have waited for links since the last
     * connect began. */
    unsigned in_use, connecting;
    uint64_t connect_ns, waited_ns;
    int has_failed; /* the peer has failed since it last worked; under the lock */
    int has_worked; /* the peer has worked at least once; atomic */
    int has_ended;  /* no request may be sent to the peer any more; under the lock */
    /* under the lock: list of the `struct use` of all threads that have a link. A follower is not
     * in the list until it gets its link. */
    struct use *uses;
    uint64_t made_ns;
    struct monarch_peer_link *link[IDLE_LINKS];
};

peer *monarch_peer_new(monarch_peer_connect connect, monarch_peer_report report, void *arg) {
    peer *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->connect = connect;
    p->report = report;
    p->arg = arg;
    p->made_ns = monarch_now_ns();
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&p->slot_free, &attributes);
    pthread_cond_init(&p->handed, &attributes);
    pthread_cond_init(&p->link_free, &attributes);
    pthread_condattr_destroy(&attributes);
    return p;
}

int monarch_peer_is_starting(const peer *p) {
    return !__atomic_load_n(&p->has_worked, __ATOMIC_RELAXED) &&
           monarch_now_ns() - p->made_ns < START_NS;
}

/* Closes the idle links. */
static void forget_idle(peer *p) {
    struct monarch_peer_link *links[IDLE_LINKS];
    pthread_mutex_lock(&p->lock);
    unsigned n = p->idle;
    for (unsigned i = 0; i < n; i++)
        links[i] = p->link[i];
    p->idle = 0;
    pthread_mutex_unlock(&p->lock);
    while (n)
        monarch_peer_link_close(links[--n]);
}

void monarch_peer_hang_up(peer *p) {
    pthread_mutex_lock(&p->lock);
    p->has_ended = 1;
    for (const struct use *u = p->uses; u; u = u->next)
        monarch_peer_link_cut(u->link);
    pthread_mutex_unlock(&p->lock);
}

static int has_ended(peer *p) {
    pthread_mutex_lock(&p->lock);
    int it_has = p->has_ended;
    pthread_mutex_unlock(&p->lock);
    return it_has;
}

void monarch_peer_free(peer *p) {
    forget_idle(p);
    pthread_cond_destroy(&p->slot_free);
    pthread_cond_destroy(&p->handed);
    pthread_cond_destroy(&p->link_free);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

static struct timespec time_of(uint64_t ns) {
    return (struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
}

/* Waits until a link is idle, or until the caller should connect another one (LINK_NS,
 * WAITS_PER_CONNECT). The wait pays off, because one connect costs both nodes more processor time
 * than many small answers. If another thread is connecting a link, waits for the outcome too; this
 * time does not count in waited_ns. The caller holds the peer's lock. */
static void await_link_locked(peer *p) {
    uint64_t now = monarch_now_ns(), since = now, limit = now + LINK_NS;
    while (!p->idle && p->in_use && now < limit) {
        int is_connecting = p->connecting != 0;
        uint64_t most = WAITS_PER_CONNECT * p->connect_ns, left = most - least(p->waited_ns, most);
        uint64_t end = is_connecting ? limit : least(since + left, limit);
        if (now >= end)
            break;
        struct timespec until = time_of(end);
        pthread_cond_timedwait(&p->link_free, &p->lock, &until);
        now = monarch_now_ns();
        since = is_connecting ? now : since;
    }
    p->waited_ns += now - since;
}

static void begin_connect_locked(peer *p) {
    p->connecting++;
    p->waited_ns = 0;
}

/* Returns an idle link, or NULL if the caller must connect one. The caller must call release_link
 * later in both cases. waits: whether to wait first until another thread releases a link. */
static struct monarch_peer_link *acquire_link(peer *p, int waits) {
    pthread_mutex_lock(&p->lock);
    if (waits)
        await_link_locked(p);
    struct monarch_peer_link *l = p->idle ? p->link[--p->idle] : NULL;
    p->in_use++;
    if (!l)
        begin_connect_locked(p);
    pthread_mutex_unlock(&p->lock);
    return l;
}

static struct monarch_peer_link *connect_link(peer *p, uint32_t *status) {
    uint64_t began = monarch_now_ns();
    struct monarch_peer_link *l = has_ended(p) ? NULL : p->connect(p->arg, status);
    pthread_mutex_lock(&p->lock);
    p->connecting--;
    p->connect_ns = monarch_now_ns() - began;
    if (!p->connecting)
        pthread_cond_broadcast(&p->link_free);
    pthread_mutex_unlock(&p->lock);
    return l;
}

static void release_link(peer *p) {
    pthread_mutex_lock(&p->lock);
    p->in_use--;
    pthread_cond_signal(&p->link_free);
    pthread_mutex_unlock(&p->lock);
}

/* Notes that a fetch has succeeded. l: the link of the fetch, which is idle now; NULL if another
 * thread has the link now. */
static void note_success(peer *p, struct monarch_peer_link *l) {
    pthread_mutex_lock(&p->lock);
    int is_kept = l && p->idle < IDLE_LINKS, is_well_again = p->has_failed;
    if (is_kept)
        p->link[p->idle++] = l;
    p->has_failed = 0;
    __atomic_store_n(&p->has_worked, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&p->lock);
    if (l && !is_kept)
        monarch_peer_link_close(l);
    if (is_well_again)
        p->report(p->arg, MONARCH_PEER_OK, 0);
}

void monarch_peer_add_link(peer *p, struct monarch_peer_link *l) {
    note_success(p, l);
    pthread_cond_signal(&p->link_free);
}

static void note_failure(peer *p) {
    pthread_mutex_lock(&p->lock);
    p->has_failed = 1;
    pthread_mutex_unlock(&p->lock);
}

/* Reports that the peer, or the connection to it, does not work. NO_ROOM is not reported, because
 * it is this node's own failure. */
static void fails(peer *p, uint32_t status, uint64_t began_ns) {
    if (status != MONARCH_PEER_NO_ROOM && !has_ended(p))
        p->report(p->arg, status, began_ns);
    /* Set has_failed only after the report. A success is reported only if has_failed is set. So a
     * later success cannot be reported before this failure. */
    note_failure(p);
    forget_idle(p);
}

/* --- the use of a link ------------------------------------------------------------------------ */

static void enter_locked(peer *p, struct use *me) {
    me->next = p->uses;
    p->uses = me;
}

static void enter(peer *p, struct use *me, const struct monarch_peer_get *g) {
    pthread_mutex_lock(&p->lock);
    enter_locked(p, me);
    if (p->has_ended)
        monarch_peer_link_cut(me->link);
    me->has_asked = me->can_be_followed && monarch_peer_request(me->link, g, &me->tag) == 0;
    pthread_mutex_unlock(&p->lock);
}

/* Ends the thread's use of its link. If the link works and the thread has a follower, passes the
 * link to it and sets me->link to NULL. */
static void leave(peer *p, struct use *me, int works) {
    struct use **at = &p->uses;
    pthread_mutex_lock(&p->lock);
    struct use *next = me->follower;
    while (*at != me)
        at = &(*at)->next;
    *at = me->next;
    if (next && works) {
        next->link = me->link;
        next->can_be_followed = 1;
        enter_locked(p, next);
        me->link = NULL;
        me->has_passed = 1;
    }
    if (next)
        pthread_cond_broadcast(&p->handed);
    for (; next; next = works ? NULL : next->follower)
        next->is_following = 0;
    pthread_mutex_unlock(&p->lock);
}

/* Finds a link on which one more thread may send a request. The threads that share a link form a
 * chain: first the thread that has the link, then its follower, and so on. Returns the last thread
 * of the chain and stores the first one in *first. Returns NULL if there is no such link. */
static struct use *find_line(const peer *p, struct use **first) {
    for (struct use *u = p->uses; u; u = u->next) {
        unsigned n = 1;
        struct use *last = u;
        for (; last->follower; last = last->follower)
            n++;
        *first = u;
        if (u->can_be_followed && u->has_asked && n < IN_LINE)
            return last;
    }
    return NULL;
}

/* Sends a request on a link on which another thread is still receiving an answer. Then waits until
 * that thread passes the link on, at most as long as that answer may take. Returns whether the
 * caller now has the link. Returns 0 if no link could take one more request, or if the link has
 * broken. */
static int follow(peer *p, struct use *me, const struct monarch_peer_get *g) {
    pthread_mutex_lock(&p->lock);
    struct use *first, *last = find_line(p, &first);
    me->has_asked = last && monarch_peer_request(first->link, g, &me->tag) == 0;
    if (me->has_asked) {
        last->follower = me;
        me->is_following = 1;
    }
    while (me->is_following)
        pthread_cond_wait(&p->handed, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return me->link != NULL;
}

/* Fetches the ranges over the link of `me`, as monarch_peer_fetch does. During the call,
 * monarch_peer_hang_up can cut the link. */
static int fetch(peer *p, struct use *me, struct monarch_peer_get *gets, uint64_t n, char *buffer,
                 monarch_peer_arrived arrived, void *arg) {
    int r;
    if (!me->has_asked)
        enter(p, me, gets);
    if (me->has_asked)
        r = monarch_peer_take(me->link, gets, me->tag, buffer, arrived, arg);
    else
        r = monarch_peer_fetch(me->link, gets, n, buffer, arrived, arg);
    leave(p, me, r == 0);
    return r;
}

/* Returns why a link broke: the status of the answer that failed, or CUT if no answer has a more
 * specific status. */
static uint32_t reason(const struct monarch_peer_get *gets, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (gets[i].status == MONARCH_PEER_TIMEOUT || gets[i].status == MONARCH_PEER_WRONG_BYTES ||
            gets[i].status == MONARCH_PEER_NO_ROOM || gets[i].status == MONARCH_PEER_FORGED)
            return gets[i].status;
    return MONARCH_PEER_CUT;
}

/* Makes the peer check its copy of each block that arrived damaged, because the copy may be rotten.
 * For this, requests one byte of the block: a peer must check a whole block before it sends a part
 * of it. The request needs a new link, because the next bytes on the old link cannot be parsed. */
static void have_looked_at(peer *p, const struct monarch_peer_get *gets, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint32_t status;
        char byte;
        if (gets[i].status != MONARCH_PEER_WRONG_BYTES || has_ended(p))
            continue;
        struct use me = {.link = p->connect(p->arg, &status)};
        struct monarch_peer_get part = gets[i];
        part.first += part.received;
        part.length = 1;
        part.is_doubted = 1;
        part.memory = (uint64_t)(uintptr_t)&byte;
        if (me.link) {
            fetch(p, &me, &part, 1, NULL, NULL, NULL);
            monarch_peer_link_close(me.link);
        }
    }
}

static int none(struct monarch_peer_get *gets, uint64_t n, uint32_t status) {
    for (uint64_t i = 0; i < n; i++) {
        gets[i].status = status;
        gets[i].received = 0;
        gets[i].error = 0;
    }
    return -1;
}

/* Takes a slot. Threads that already wait get free slots before a thread that calls this function
 * now. Returns 0 if no slot became free in time. */
static int acquire_slot(peer *p) {
    uint64_t began = monarch_now_ns(), now = began;
    pthread_mutex_lock(&p->lock);
    int has_slot = p->slots < LARGE_AT_ONCE;
    p->slots += (unsigned)has_slot;
    p->waiting += !has_slot;
    while (!has_slot && now < began + 2 * SLOT_NS) {
        uint64_t end = (p->came_ns > began ? p->came_ns : began) + SLOT_NS;
        struct timespec until = time_of(end);
        if (now >= end)
            break;
        pthread_cond_timedwait(&p->slot_free, &p->lock, &until);
        has_slot = p->passed > 0;
        p->passed -= (unsigned)has_slot;
        p->waiting -= (unsigned)has_slot;
        now = monarch_now_ns();
    }
    p->waiting -= !has_slot;
    pthread_mutex_unlock(&p->lock);
    return has_slot;
}

static void release_slot(peer *p, int has_come) {
    pthread_mutex_lock(&p->lock);
    if (has_come)
        p->came_ns = monarch_now_ns();
    if (p->waiting > p->passed) {
        p->passed++;
        pthread_cond_signal(&p->slot_free);
    } else {
        p->slots--;
    }
    pthread_mutex_unlock(&p->lock);
}

/* Fetches the ranges over the link of `me`, or over a new link if `me` has no link, or if the peer
 * has closed this link. */
static int ask_with(peer *p, struct use *me, struct monarch_peer_get *gets, uint64_t n,
                    char *buffer, monarch_peer_arrived arrived, void *arg) {
    uint32_t status = MONARCH_PEER_CUT;
    uint64_t began = monarch_now_ns();
    int shares_link = me->can_be_followed;
    if (me->link) {
        uint64_t frames = monarch_peer_link_frames(me->link);
        if (fetch(p, me, gets, n, buffer, arrived, arg) == 0) {
            note_success(p, me->link);
            return 0;
        }
        /* If the link was closed before any frame of the answer arrived, the peer has not failed.
         * It may have closed the idle link, or may have been restarted. But if the answer was too
         * late, the peer has failed. */
        int was_closed =
            monarch_peer_link_frames(me->link) == frames && reason(gets, n) == MONARCH_PEER_CUT;
        monarch_peer_link_close(me->link);
        if (!was_closed) {
            have_looked_at(p, gets, n);
            fails(p, reason(gets, n), began);
            return -1;
        }
        forget_idle(p);
        pthread_mutex_lock(&p->lock);
        begin_connect_locked(p);
        pthread_mutex_unlock(&p->lock);
    }
    *me = (struct use){.can_be_followed = shares_link, .link = connect_link(p, &status)};
    if (!me->link) {
        note_failure(p);
        return none(gets, n, status);
    }
    if (fetch(p, me, gets, n, buffer, arrived, arg) == 0) {
        note_success(p, me->link);
        return 0;
    }
    monarch_peer_link_close(me->link);
    have_looked_at(p, gets, n);
    fails(p, reason(gets, n), began);
    return -1;
}

static int ask(peer *p, struct monarch_peer_get *gets, uint64_t n, int shares_link, char *buffer,
               monarch_peer_arrived arrived, void *arg) {
    struct use me = {.can_be_followed = shares_link};
    if (!shares_link || !follow(p, &me, gets))
        me = (struct use){.can_be_followed = shares_link, .link = acquire_link(p, !shares_link)};
    int r = ask_with(p, &me, gets, n, buffer, arrived, arg);
    if (!me.has_passed)
        release_link(p);
    return r;
}

int monarch_peer_ask(peer *p, struct monarch_peer_get *gets, uint64_t n, char *buffer,
                     monarch_peer_arrived arrived, void *arg) {
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < n && bytes < LARGE_BYTES; i++)
        /* Ranges for which a reader waits need no slot, so their bytes are not counted. */
        bytes += gets[i].is_awaited ? 0 : gets[i].length;
    if (bytes < LARGE_BYTES)
        return ask(p, gets, n, 0, buffer, arrived, arg);
    /* A request without a slot does not share its link with another request. So neither of the two
     * requests must wait for the answer to the other. */
    int has_slot = acquire_slot(p);
    int r = ask(p, gets, n, has_slot && n == 1, buffer, arrived, arg);
    if (has_slot)
        release_slot(p, r == 0 && gets[0].status == MONARCH_PEER_OK);
    return r;
}
