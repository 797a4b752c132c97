/* One peer as its askers see it: its idle links, and what to do when one breaks. Connecting, and
 * whether the peer is to be left alone for a while, is Python's (monarch_py/peers/peer.py), which
 * is called for that alone: a fetch over a link that works never waits for the interpreter. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include "connection.h"

/* More links than threads that ask at a time are of no use. */
#define IDLE_LINKS 16
/* Answers of this size share the way to the peer and come no sooner for being many, but each of
 * them wakes both sides for less of it. So many at a time are asked for: a server's threads can
 * stay with them, and one is left for everybody else (can_stay in server.c). */
#define LARGE_BYTES (1024 * 1024)
#define LARGE_AT_ONCE 3
/* Whoever has waited for a turn for this long goes on without one: the peer may have others wait
 * for its source. With the bound of a first byte less than the 2 s that a reader may wait [ns]. */
#define TURN_NS 500000000ULL
/* Who was brought up together serves within this time of each other [ns]. */
#define START_NS 10000000000ULL

typedef struct monarch_peer peer;

/* A link that a thread waits at. */
struct use {
    struct use *next;
    struct monarch_peer_link *link;
};

struct monarch_peer {
    monarch_peer_connect connect;
    monarch_peer_report report;
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    unsigned large; /* answers that are under way; the lock's */
    unsigned idle;
    int has_failed;   /* since it last worked; the lock's */
    int has_worked;   /* ever; atomic */
    int has_ended;    /* it is asked nothing any more; the lock's */
    struct use *uses; /* the lock's */
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
    p->made_ns = monarch_peer_now_ns();
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&p->turn, &attributes);
    pthread_condattr_destroy(&attributes);
    return p;
}

int monarch_peer_is_starting(const peer *p) {
    return !__atomic_load_n(&p->has_worked, __ATOMIC_RELAXED) &&
           monarch_peer_now_ns() - p->made_ns < START_NS;
}

void monarch_peer_forget_idle(peer *p) {
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
    monarch_peer_forget_idle(p);
    pthread_cond_destroy(&p->turn);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static struct monarch_peer_link *take_idle(peer *p) {
    pthread_mutex_lock(&p->lock);
    struct monarch_peer_link *l = p->idle ? p->link[--p->idle] : NULL;
    pthread_mutex_unlock(&p->lock);
    return l;
}

static void give_back(peer *p, struct monarch_peer_link *l) {
    pthread_mutex_lock(&p->lock);
    int is_kept = p->idle < IDLE_LINKS, is_well_again = p->has_failed;
    if (is_kept)
        p->link[p->idle++] = l;
    p->has_failed = 0;
    __atomic_store_n(&p->has_worked, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&p->lock);
    if (!is_kept)
        monarch_peer_link_close(l);
    if (is_well_again)
        p->report(p->arg, MONARCH_PEER_OK);
}

static void note_failure(peer *p) {
    pthread_mutex_lock(&p->lock);
    p->has_failed = 1;
    pthread_mutex_unlock(&p->lock);
}

/* What says that the peer or the way to it is not well. NO_ROOM is our own fault. */
static void fails(peer *p, uint32_t status) {
    if (status != MONARCH_PEER_NO_ROOM && !has_ended(p))
        p->report(p->arg, status);
    /* Afterwards, so that every failure that was told of is followed by the next success. */
    note_failure(p);
    monarch_peer_forget_idle(p);
}

/* As monarch_peer_fetch; hanging up ends it. */
static int fetch(peer *p, struct monarch_peer_link *l, struct monarch_peer_get *gets, uint64_t n,
                 char *buffer, monarch_peer_arrived arrived, void *arg) {
    struct use me = {.link = l}, **at = &p->uses;
    pthread_mutex_lock(&p->lock);
    me.next = p->uses;
    p->uses = &me;
    if (p->has_ended)
        monarch_peer_link_cut(l);
    pthread_mutex_unlock(&p->lock);
    int r = monarch_peer_fetch(l, gets, n, buffer, arrived, arg);
    pthread_mutex_lock(&p->lock);
    while (*at != &me)
        at = &(*at)->next;
    *at = me.next;
    pthread_mutex_unlock(&p->lock);
    return r;
}

/* Why a link broke: what the answer before the first CUT says, or that. */
static uint32_t reason(const struct monarch_peer_get *gets, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (gets[i].status == MONARCH_PEER_TIMEOUT || gets[i].status == MONARCH_PEER_WRONG_BYTES ||
            gets[i].status == MONARCH_PEER_NO_ROOM)
            return gets[i].status;
    return MONARCH_PEER_CUT;
}

/* To send a part of a block its holder has to look through all of it, and finds out whether it has
 * rotted since its sum was recorded. Over a link of its own: what would follow on the other cannot
 * be understood. */
static void have_looked_at(peer *p, const struct monarch_peer_get *gets, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint32_t status;
        char byte;
        if (gets[i].status != MONARCH_PEER_WRONG_BYTES || has_ended(p))
            continue;
        struct monarch_peer_link *l = p->connect(p->arg, &status);
        struct monarch_peer_get part = gets[i];
        part.first += part.received;
        part.length = 1;
        part.is_doubted = 1;
        part.memory = (uint64_t)(uintptr_t)&byte;
        if (l) {
            fetch(p, l, &part, 1, &byte, NULL, NULL);
            monarch_peer_link_close(l);
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

static void take_turn(peer *p) {
    uint64_t end = monarch_peer_now_ns() + TURN_NS;
    struct timespec until = {(time_t)(end / 1000000000), (long)(end % 1000000000)};
    int r = 0;
    pthread_mutex_lock(&p->lock);
    while (r == 0 && p->large >= LARGE_AT_ONCE)
        r = pthread_cond_timedwait(&p->turn, &p->lock, &until);
    p->large++;
    pthread_mutex_unlock(&p->lock);
}

static void end_turn(peer *p) {
    pthread_mutex_lock(&p->lock);
    p->large--;
    pthread_cond_signal(&p->turn);
    pthread_mutex_unlock(&p->lock);
}

static int ask(peer *p, struct monarch_peer_get *gets, uint64_t n, char *buffer,
               monarch_peer_arrived arrived, void *arg) {
    uint32_t status = MONARCH_PEER_CUT;
    struct monarch_peer_link *l = take_idle(p);
    if (l) {
        uint64_t frames = monarch_peer_link_frames(l);
        if (fetch(p, l, gets, n, buffer, arrived, arg) == 0) {
            give_back(p, l);
            return 0;
        }
        /* The peer closes what was idle for long, and may have been restarted: no failure yet. One
         * that is silent is one: its bound is used up. */
        int was_closed =
            monarch_peer_link_frames(l) == frames && reason(gets, n) == MONARCH_PEER_CUT;
        monarch_peer_link_close(l);
        if (!was_closed) {
            have_looked_at(p, gets, n);
            fails(p, reason(gets, n));
            return -1;
        }
        monarch_peer_forget_idle(p);
    }
    l = has_ended(p) ? NULL : p->connect(p->arg, &status);
    if (!l) {
        note_failure(p);
        return none(gets, n, status);
    }
    if (fetch(p, l, gets, n, buffer, arrived, arg) == 0) {
        give_back(p, l);
        return 0;
    }
    monarch_peer_link_close(l);
    have_looked_at(p, gets, n);
    fails(p, reason(gets, n));
    return -1;
}

int monarch_peer_ask(peer *p, struct monarch_peer_get *gets, uint64_t n, char *buffer,
                     monarch_peer_arrived arrived, void *arg) {
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < n && bytes < LARGE_BYTES; i++)
        bytes += gets[i].is_awaited ? 0 : gets[i].length; /* a reader waits for no turn */
    if (bytes < LARGE_BYTES)
        return ask(p, gets, n, buffer, arrived, arg);
    take_turn(p);
    int r = ask(p, gets, n, buffer, arrived, arg);
    end_turn(p);
    return r;
}
