/* The table of descriptors that programs have handed over. Each descriptor waits for an order to
 * fill its file. A descriptor comes here if no thread can begin the fill when it arrives. Usually,
 * the daemon has not ordered the fill yet, and no grant lets a thread order it. Perhaps the daemon
 * does not even know the file. When a thread begins the order later, the fill reads from the
 * descriptor, instead of opening the file at the source. Until then, the program can ask the daemon
 * at any time to close the descriptor. */
#include "handover/kept.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/grant.h"
#include "engine/orders.h"
#include "engine/schedule.h"
#include "publish/writer.h"
#include "shared/claims.h"
#include "shared/clock.h"
#include "shared/joining.h"

/* Maximum number of descriptors in the table. */
#define KEPT 768
/* The table contains at most 1 / SHARE of the process's limit on open descriptors, if that is fewer
 * than KEPT. */
#define SHARE 4
/* A descriptor without an order is closed when two conditions are true. ORDER_NS have passed since
 * it was received. And the daemon's loop has had ITERATIONS iterations since the daemon was told of
 * the file. */
#define ORDER_NS 50000000ULL
#define ITERATIONS 2
/* Interval [ns] at which the table's thread checks all descriptors. If a program asks the daemon to
 * close a descriptor, the thread notices this within one interval. */
#define LOOK_NS 20000000L
#define STACK_BYTES (64 * 1024)

struct kept_table {
    struct pool *pool;
    unsigned most;
    pthread_mutex_t lock; /* guards the next four fields; no other lock is taken while it is held */
    uint64_t ino[KEPT];
    struct handed *at[KEPT];
    unsigned count; /* atomic */
    /* List of descriptors to be closed. The table's thread closes them without a lock, because a
     * close may have to wait for the source. */
    struct handed *dropped;
    /* futex, rung when the table is no longer empty, when descriptors are dropped, and when the
     * engine stops */
    uint32_t bell;
    pthread_t thread;
};

/* --- the table, accessed under its lock ------------------------------------------------------- */

static void set_count(struct kept_table *t, unsigned count) {
    __atomic_store_n(&t->count, count, __ATOMIC_RELAXED);
}

static void take_out(struct kept_table *t, unsigned i) {
    set_count(t, t->count - 1);
    t->at[i] = t->at[t->count];
    t->ino[i] = t->ino[t->count];
}

static void drop(struct kept_table *t, unsigned i) {
    struct handed *h = t->at[i];
    take_out(t, i);
    h->next = t->dropped;
    t->dropped = h;
}

/* Queues the descriptor for closing, but keeps the file in the table, because perhaps the daemon
 * was not told of the file yet. */
static void drop_descriptor(struct kept_table *t, struct handed *h) {
    struct handed *dropped = h->fd >= 0 ? calloc(1, sizeof *dropped + 1) : NULL;
    if (!dropped)
        return;
    dropped->fd = h->fd;
    dropped->claim = h->claim;
    h->fd = -1;
    dropped->next = t->dropped;
    t->dropped = dropped;
}

static int is_of(const struct handed *h, const struct job *job) {
    if (h->id != MONARCH_NO_ENTRY)
        return h->id == job->result.id;
    return h->entry.source == job->entry.source && strcmp(h->path, job->path) == 0;
}

/* Returns the index of the descriptor that waits for the order; -1 if there is none. */
static int find(const struct kept_table *t, const struct job *job) {
    for (unsigned i = 0; i < t->count; i++)
        if (t->ino[i] == job->entry.ino && is_of(t->at[i], job))
            return (int)i;
    return -1;
}

static void tell(struct kept_table *t, struct handed *h) {
    h->is_told = 1;
    h->told_at = __atomic_load_n(&t->pool->grant.iterations, __ATOMIC_SEQ_CST);
}

static void ring(struct kept_table *t) {
    __atomic_fetch_add(&t->bell, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &t->bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

int monarch_keep(struct kept_table *t, struct handed *h, int is_asked) {
    pthread_mutex_lock(&t->lock);
    int has_room = t->count < t->most, is_first = t->count == 0;
    if (has_room) {
        if (is_asked && h->id != MONARCH_NO_ENTRY)
            tell(t, h);
        t->ino[t->count] = h->entry.ino;
        t->at[t->count] = h;
        set_count(t, t->count + 1);
    }
    pthread_mutex_unlock(&t->lock);
    if (has_room && is_first)
        ring(t);
    return has_room;
}

/* --- orders ----------------------------------------------------------------------------------- */

void monarch_note_kept(struct pool *p, struct job *job) {
    struct kept_table *t = p->kept;
    /* The table is nearly always empty. So check `count` first, which needs no lock. */
    if (!t || !__atomic_load_n(&t->count, __ATOMIC_RELAXED) || job->result.kind != MONARCH_FILL ||
        monarch_origin_of(job) != MONARCH_FROM_SOURCE)
        return;
    pthread_mutex_lock(&t->lock);
    int i = find(t, job);
    if (i >= 0)
        t->at[i]->is_ordered = job->is_kept = 1;
    pthread_mutex_unlock(&t->lock);
}

void monarch_take_kept(struct pool *p, struct job *job) {
    struct kept_table *t = p->kept;
    struct handed *h = NULL;
    pthread_mutex_lock(&t->lock);
    int i = find(t, job);
    if (i >= 0) {
        h = t->at[i];
        take_out(t, (unsigned)i);
    }
    pthread_mutex_unlock(&t->lock);
    if (h && h->fd >= 0 && job->handed < 0)
        monarch_hand_to(h, job);
    else if (h)
        monarch_give_back(p, h);
    free(h);
}

uint64_t monarch_engine_unmet(struct monarch_engine *e, unsigned source, uint64_t renames,
                              struct monarch_entry *entries, uint64_t max, char *pool) {
    struct kept_table *t = ((struct pool *)e)->kept;
    uint64_t n = 0, used = 0;
    pthread_mutex_lock(&t->lock);
    for (unsigned i = 0; i < t->count && n < max; i++) {
        struct handed *h = t->at[i];
        if (h->id != MONARCH_NO_ENTRY || h->is_told || h->entry.source != source ||
            h->renames != renames)
            continue;
        tell(t, h);
        entries[n] = h->entry;
        entries[n++].path = used;
        memcpy(pool + used, h->path, h->entry.path_len + 1u);
        used += h->entry.path_len + 1u;
    }
    pthread_mutex_unlock(&t->lock);
    return n;
}

/* --- the thread that looks after the table ---------------------------------------------------- */

/* Returns whether the descriptor has waited long enough for an order (ORDER_NS and ITERATIONS). */
static int is_in_vain(const struct kept_table *t, const struct handed *h, uint64_t now) {
    uint32_t iterations =
        __atomic_load_n(&t->pool->grant.iterations, __ATOMIC_SEQ_CST) - h->told_at;
    return h->is_told && iterations >= ITERATIONS && now - h->since_ns > ORDER_NS;
}

/* Orders a fill of the descriptor's file. If the grant does not allow the fill, asks the daemon to
 * order it. Sets *asks to 1 if the daemon's loop must be woken for this. Returns whether the
 * descriptor must stay in the table. The caller holds the locks of the writer, the pool and the
 * table. */
static int is_still_kept(struct kept_table *t, struct handed *h, struct monarch_catalog *c,
                         int *asks) {
    struct pool *p = t->pool;
    struct job *job;
    enum monarch_answer answer = monarch_order_handed(p, c, h, &job);
    if (job) {
        h->is_ordered = job->is_kept = 1;
        monarch_push(&p->in_use[MONARCH_FROM_SOURCE], job);
        monarch_remember(p, job);
    }
    if ((answer == MONARCH_REFUSED && !h->is_told) || answer == MONARCH_ANOTHERS) {
        *asks |= monarch_asks_policy(p, h);
        if (h->id != MONARCH_NO_ENTRY)
            tell(t, h);
    }
    return job || answer == MONARCH_REFUSED || answer == MONARCH_NOT_YET;
}

/* Returns whether the file stays in the table. If its descriptor was closed, it stays only until
 * the daemon was told of it. Sets *asks as is_still_kept does. c: the catalog; NULL if the caller
 * does not hold the writer's lock. */
static int stays(struct kept_table *t, struct handed *h, struct monarch_catalog *c, uint64_t now,
                 int *asks) {
    if (monarch_is_recalled(t->pool->shared.clients, h->claim, now))
        drop_descriptor(t, h);
    if (h->is_ordered)
        return h->fd >= 0;
    if (is_in_vain(t, h, now))
        return 0;
    if (h->fd >= 0)
        return !c || is_still_kept(t, h, c, asks);
    if (h->id == MONARCH_NO_ENTRY)
        return 1;
    *asks |= !h->is_told && monarch_asks_policy(t->pool, h);
    return 0;
}

/* Checks every descriptor in the table. Returns whether the daemon's loop must be woken. */
static int look_at(struct kept_table *t, struct monarch_catalog *c) {
    uint64_t now = monarch_now_ns();
    int asks = 0;
    for (unsigned i = 0; i < t->count;)
        if (stays(t, t->at[i], c, now, &asks))
            i++;
        else
            drop(t, i);
    return asks;
}

static void look(struct kept_table *t) {
    struct pool *p = t->pool;
    struct monarch_writer *w = p->shared.writer;
    if (!__atomic_load_n(&t->count, __ATOMIC_RELAXED))
        return;
    int has_writer = monarch_lock_soon(w);
    pthread_mutex_lock(&p->lock);
    pthread_mutex_lock(&t->lock);
    int asks = look_at(t, has_writer ? w->catalog : NULL), drops = t->dropped != NULL;
    pthread_mutex_unlock(&t->lock);
    monarch_unlock_and_ring(p);
    if (has_writer)
        pthread_mutex_unlock(&w->lock);
    if (asks)
        monarch_end_rest(p);
    if (drops)
        ring(t);
}

void monarch_look_at_kept(struct pool *p) {
    if (p->kept)
        look(p->kept);
}

static void close_dropped(struct kept_table *t) {
    pthread_mutex_lock(&t->lock);
    struct handed *h = t->dropped;
    t->dropped = NULL;
    pthread_mutex_unlock(&t->lock);
    for (struct handed *next; h; h = next) {
        next = h->next;
        monarch_give_back(t->pool, h);
        free(h);
    }
}

static void *look_after(void *arg) {
    struct kept_table *t = arg;
    const struct timespec limit = {0, LOOK_NS};
    pthread_setname_np(pthread_self(), "monarch-keep");
    for (;;) {
        uint32_t bell = __atomic_load_n(&t->bell, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&t->pool->shared.stopping, __ATOMIC_ACQUIRE))
            return NULL;
        int is_empty = !__atomic_load_n(&t->count, __ATOMIC_RELAXED);
        look(t);
        close_dropped(t);
        syscall(SYS_futex, &t->bell, FUTEX_WAIT_PRIVATE, bell, is_empty ? NULL : &limit, NULL, 0);
    }
}

struct kept_table *monarch_new_kept(struct pool *p) {
    struct kept_table *t = calloc(1, sizeof *t);
    pthread_attr_t attributes;
    struct rlimit limit;
    if (!t)
        return NULL;
    t->pool = p;
    t->most = KEPT;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur / SHARE < KEPT)
        t->most = (unsigned)(limit.rlim_cur / SHARE);
    pthread_mutex_init(&t->lock, NULL);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    int is_started = pthread_create(&t->thread, &attributes, look_after, t) == 0;
    pthread_attr_destroy(&attributes);
    if (is_started)
        return t;
    pthread_mutex_destroy(&t->lock);
    free(t);
    return NULL;
}

void monarch_end_kept(struct kept_table *t) { ring(t); }

int monarch_join_kept(struct kept_table *t, const struct timespec *until) {
    return monarch_join(t->thread, until);
}

void monarch_free_kept(struct kept_table *t) {
    while (t->count)
        drop(t, 0);
    close_dropped(t);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
