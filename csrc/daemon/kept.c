/* A descriptor waits here while policy decides and nothing is granted, while policy has still to
 * order its file, or to learn of it. The order that is made meanwhile opens no source: it takes the
 * descriptor when it begins. Until then the program can have it back at any time. */
#define _GNU_SOURCE
#include "kept.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "handed.h"
#include "joining.h"
#include "orders.h"
#include "waking.h"
#include "writer.h"

/* Descriptors, at most. */
#define KEPT 768
/* One waits no longer for its order, once policy has been told and has had its turns [ns]. */
#define ORDER_NS 50000000ULL
#define TURNS 2
/* A program that asks for its descriptor waits no longer [ns]. */
#define LOOK_NS 20000000L
#define STACK_BYTES (64 * 1024)

#define NOBODY UINT64_MAX

struct kept {
    int fd;           /* -1: it was given back */
    int is_read;      /* all of it, by its program */
    int is_told;      /* policy knows that the file waits for its order; */
    int is_ordered;   /* there is one */
    uint32_t told_at; /* in this turn of the daemon's loop */
    uint64_t id;      /* of its entry; NOBODY: it has none */
    uint64_t claim, since_ns;
    struct monarch_entry entry; /* of a file that has none; else only its inode's number */
    char path[];
};

struct kept_table {
    struct pool *pool;
    pthread_mutex_t lock; /* of all below; no other is taken under it */
    uint64_t ino[KEPT];
    struct kept *at[KEPT];
    unsigned count;
    uint32_t bell; /* futex: there is one again, or the end has come */
    pthread_t thread;
};

/* --- the table: under its lock ------------------------------------------------------------------
 */

static void give_back(struct kept_table *t, struct kept *k) {
    if (k->fd >= 0) {
        close(k->fd);
        monarch_end_claim(t->pool->shared.clients, k->claim);
    }
    k->fd = -1;
}

static void take_out(struct kept_table *t, unsigned i) {
    t->at[i] = t->at[--t->count];
    t->ino[i] = t->ino[t->count];
}

static void drop(struct kept_table *t, unsigned i) {
    struct kept *k = t->at[i];
    take_out(t, i);
    give_back(t, k);
    free(k);
}

static int is_of(const struct kept *k, const struct job *job) {
    if (k->id != NOBODY)
        return k->id == job->result.id;
    return k->entry.source == job->entry.source && strcmp(k->path, job->path) == 0;
}

/* -1 for none. */
static int find(const struct kept_table *t, const struct job *job) {
    for (unsigned i = 0; i < t->count; i++)
        if (t->ino[i] == job->entry.ino && is_of(t->at[i], job))
            return (int)i;
    return -1;
}

static void tell(struct kept_table *t, struct kept *k) {
    k->is_told = 1;
    k->told_at = __atomic_load_n(&t->pool->grant.turns, __ATOMIC_SEQ_CST);
}

/* --- one more -----------------------------------------------------------------------------------
 */

static void ring(struct kept_table *t) {
    __atomic_fetch_add(&t->bell, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &t->bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static struct kept *new_kept(int fd, const struct monarch_handover *what, size_t path_len) {
    struct kept *k = calloc(1, sizeof *k + path_len + 1);
    if (!k)
        return NULL;
    k->fd = fd;
    k->is_read = what->is_read != 0;
    k->claim = what->id;
    k->id = monarch_is_unmet(what->id) ? NOBODY : what->id;
    k->since_ns = monarch_now_ns();
    memcpy(k->path, what->path, path_len);
    return k;
}

static int add(struct kept_table *t, struct kept *k, int is_told) {
    pthread_mutex_lock(&t->lock);
    int has_room = t->count < KEPT, is_first = t->count == 0;
    if (has_room) {
        if (is_told)
            tell(t, k);
        t->ino[t->count] = k->entry.ino;
        t->at[t->count++] = k;
    }
    pthread_mutex_unlock(&t->lock);
    if (!has_room)
        free(k);
    else if (is_first)
        ring(t);
    return has_room;
}

int monarch_keep(struct kept_table *t, int fd, const struct monarch_handover *what, int is_told) {
    struct kept *k = new_kept(fd, what, 0);
    if (!k)
        return 0;
    uint64_t dev;
    k->entry.ino = monarch_inode_of(fd, &dev);
    return add(t, k, is_told);
}

/* As the scan would spell it. */
static int is_plain(const char *path) {
    for (const char *at = path, *end;; at = end + 1) {
        end = strchrnul(at, '/');
        size_t n = (size_t)(end - at);
        if (n == 0 || (n <= 2 && !memcmp(at, "..", n)))
            return 0;
        if (!*end)
            return 1;
    }
}

/* Whether the name leads to the file of the descriptor: its attributes. */
static int describe(const struct pool *p, int fd, const struct monarch_handover *what,
                    struct monarch_entry *e) {
    char target[1];
    uint64_t dev, ino = monarch_inode_of(fd, &dev);
    return is_plain(what->path) && ino && dev == p->shared.control->source[what->source].dev &&
           monarch_statx_entry(p->roots[what->source], what->source, what->path, AT_STATX_DONT_SYNC,
                               e, target, sizeof target) == 0 &&
           e->kind == MONARCH_FILE && e->ino == ino;
}

int monarch_keep_unmet(struct kept_table *t, int fd, const struct monarch_handover *what) {
    struct kept *k = new_kept(fd, what, what->path_len);
    if (!k)
        return 0;
    if (!describe(t->pool, fd, what, &k->entry)) {
        free(k);
        return 0;
    }
    k->entry.path_len = (uint16_t)what->path_len;
    return add(t, k, 0);
}

/* --- orders -------------------------------------------------------------------------------------
 */

/* A table without descriptors costs an order nothing. */
static struct kept_table *table_of(const struct pool *p) {
    struct kept_table *t = p->kept;
    return t && __atomic_load_n(&t->count, __ATOMIC_RELAXED) ? t : NULL;
}

void monarch_note_kept(struct pool *p, struct job *job) {
    struct kept_table *t = table_of(p);
    if (!t || job->result.kind != MONARCH_FILL || monarch_way_of(job) != MONARCH_FROM_SOURCE)
        return;
    pthread_mutex_lock(&t->lock);
    int i = find(t, job);
    if (i >= 0)
        t->at[i]->is_ordered = job->is_kept = 1;
    pthread_mutex_unlock(&t->lock);
}

void monarch_take_kept(struct pool *p, struct job *job) {
    struct kept_table *t = p->kept;
    struct kept *k = NULL;
    pthread_mutex_lock(&t->lock);
    int i = find(t, job);
    if (i >= 0) {
        k = t->at[i];
        take_out(t, (unsigned)i);
    }
    pthread_mutex_unlock(&t->lock);
    if (k && k->fd >= 0 && job->handed < 0) {
        job->handed = k->fd;
        job->claim = k->claim;
        job->is_read = k->is_read;
    } else if (k) {
        give_back(t, k);
    }
    free(k);
}

uint64_t monarch_engine_unmet(struct monarch_engine *e, unsigned source,
                              struct monarch_entry *entries, uint64_t max, char *pool) {
    struct kept_table *t = ((struct pool *)e)->kept;
    uint64_t n = 0, used = 0;
    pthread_mutex_lock(&t->lock);
    for (unsigned i = 0; i < t->count && n < max; i++) {
        struct kept *k = t->at[i];
        if (k->id != NOBODY || k->is_told || k->entry.source != source)
            continue;
        tell(t, k);
        entries[n] = k->entry;
        entries[n++].path = used;
        memcpy(pool + used, k->path, k->entry.path_len + 1u);
        used += k->entry.path_len + 1u;
    }
    pthread_mutex_unlock(&t->lock);
    return n;
}

/* --- the thread that looks after them -----------------------------------------------------------
 */

/* Policy has had its turns, and there is no order. */
static int is_in_vain(const struct kept_table *t, const struct kept *k, uint64_t now) {
    uint32_t turns = __atomic_load_n(&t->pool->grant.turns, __ATOMIC_SEQ_CST) - k->told_at;
    return k->is_told && turns >= TURNS && now - k->since_ns > ORDER_NS;
}

/* Takes the file into the catalog, where policy lets it; without room there it is left to policy.
 */
static void meet(struct pool *p, struct monarch_catalog *c, struct kept *k) {
    uint64_t id, added = 0;
    if (!p->grant.holds || !(p->grant.meets >> k->entry.source & 1) || k->is_told ||
        !monarch_add(c, &k->entry, 1, k->path, &id, &added) || id >= MONARCH_MAX_FILES)
        return;
    k->id = id;
    if (k->is_read)
        monarch_set_bit(&p->shared.clients->read, id);
}

/* Orders the fill within the grant, or asks policy. Whether the descriptor goes on waiting. Under
 * the writer's lock, the pool's and the table's. */
static int is_still_kept(struct kept_table *t, struct kept *k, struct monarch_catalog *c,
                         int *asks) {
    struct pool *p = t->pool;
    struct job *job;
    enum monarch_handed answer = monarch_order_handed(p, c, k->id, k->entry.ino, &job);
    if (answer == MONARCH_TAKEN && job) {
        k->is_ordered = job->is_kept = 1;
        monarch_push(&p->in_use[MONARCH_FROM_SOURCE], job);
        monarch_remember(p, job);
    }
    if ((answer == MONARCH_REFUSED && !k->is_told) || answer == MONARCH_ANOTHERS) {
        *asks |= monarch_asks_policy(p, k->id);
        tell(t, k);
    }
    return job || answer == MONARCH_REFUSED || answer == MONARCH_NOT_YET;
}

/* c : NULL, while the catalog cannot be looked at */
static int look_at(struct kept_table *t, struct monarch_catalog *c, uint64_t now) {
    int asks = 0;
    for (unsigned i = 0; i < t->count;) {
        struct kept *k = t->at[i];
        if (k->id == NOBODY && c)
            meet(t->pool, c, k);
        int is_known = k->id != NOBODY;
        if (monarch_is_recalled(t->pool->shared.clients, k->claim, now))
            give_back(t, k);
        if (k->is_ordered) {
            i++;
        } else if (k->fd < 0 || is_in_vain(t, k, now)) {
            if (is_known && !k->is_told)
                asks |= monarch_asks_policy(t->pool, k->id);
            drop(t, i);
        } else if (is_known && c && !is_still_kept(t, k, c, &asks)) {
            drop(t, i);
        } else {
            i++;
        }
    }
    return asks;
}

void monarch_look_at_kept(struct kept_table *t) {
    struct pool *p = t->pool;
    if (!__atomic_load_n(&t->count, __ATOMIC_RELAXED))
        return;
    struct monarch_writer *w = p->shared.writer;
    int has_writer = monarch_lock_soon(w);
    pthread_mutex_lock(&p->lock);
    pthread_mutex_lock(&t->lock);
    int asks = look_at(t, has_writer ? w->catalog : NULL, monarch_now_ns());
    pthread_mutex_unlock(&t->lock);
    monarch_unlock_and_ring(p);
    if (has_writer)
        pthread_mutex_unlock(&w->lock);
    if (asks)
        monarch_end_rest(p);
}

static void *look_after(void *arg) {
    struct kept_table *t = arg;
    struct pool *p = t->pool;
    const struct timespec limit = {0, LOOK_NS};
    pthread_setname_np(pthread_self(), "monarch-keep");
    for (;;) {
        uint32_t bell = __atomic_load_n(&t->bell, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&p->shared.stopping, __ATOMIC_ACQUIRE))
            return NULL;
        pthread_mutex_lock(&t->lock);
        int is_empty = t->count == 0;
        pthread_mutex_unlock(&t->lock);
        if (!is_empty)
            monarch_look_at_kept(t);
        syscall(SYS_futex, &t->bell, FUTEX_WAIT_PRIVATE, bell, is_empty ? NULL : &limit, NULL, 0);
    }
}

struct kept_table *monarch_new_kept(struct pool *p) {
    struct kept_table *t = calloc(1, sizeof *t);
    pthread_attr_t attributes;
    if (!t)
        return NULL;
    t->pool = p;
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
    pthread_mutex_destroy(&t->lock);
    free(t);
}
