/* A reader's descriptor comes with the number of its file's entry, and is trusted in nothing: the
 * fill looks whether it is of the file that the catalog describes, as it does with one that it has
 * opened itself. Threads of its own take them, so that a descriptor is closed soon: what hangs on
 * an open file (flock) ends when the last of its descriptors is closed. */
#define _GNU_SOURCE
#include "handovers.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "joining.h"
#include "orders.h"
#include "work.h"
#include "writer.h"

/* So many files are copied at a time: each thread waits for the source to say that its file is
 * unchanged. */
#define THREADS 32
/* A descriptor waits no longer for the next grant [ns]. */
#define GRANT_NS 40000000ULL
#define STACK_BYTES (256 * 1024)

/* Files that the catalog does not know, at most. */
#define UNMET 768
/* A descriptor of one waits no longer for its order [ns]. */
#define UNMET_NS 50000000ULL

struct unmet {
    int fd;         /* -1: it was given back */
    int is_read;    /* all of it, by its program */
    int is_told;    /* Python has its attributes, */
    int is_ordered; /* and has ordered its fill */
    uint64_t claim, since_ns;
    struct monarch_entry entry;
    char path[MONARCH_MAIL_PATH];
};

struct handovers {
    struct pool *pool;
    int socket;
    pthread_mutex_t lock; /* of all below; no other is taken under it */
    struct unmet *unmet[UNMET];
    unsigned unmet_count;
    int threads, waiting; /* of them: for a descriptor */
    struct taker {
        struct handovers *all;
        struct worker worker;
    } taker[THREADS];
};

/* --- one file -----------------------------------------------------------------------------------
 */

/* TAKEN: an order is found, or another one fills the file. ANOTHERS: the descriptor is none of it.
 */
enum answer { TAKEN, REFUSED, NOT_YET, ANOTHERS };

/* An order that waits for its turn has it now; one for which peers are asked stays as it is. */
static struct job *take_queued(struct pool *p, uint64_t id) {
    struct job *job = monarch_queued_fill(p, id);
    if (!job || monarch_way_of(job) != MONARCH_FROM_SOURCE)
        return NULL;
    monarch_unqueue(p, job);
    p->pending[job->result.in_use][MONARCH_FROM_SOURCE]--;
    p->pending[job->result.in_use = 1][MONARCH_FROM_SOURCE]++;
    return job;
}

/* The same of a file without an order. Its bytes are here, so that no peer is asked. */
static struct job *place(struct pool *p, struct monarch_catalog *c, uint64_t id) {
    struct job *job = monarch_place_granted(p, c, id);
    if (!job)
        return NULL;
    for (int i = 0; i < MONARCH_ASKED; i++)
        job->peer[i] = -1;
    job->result.in_use = 1;
    monarch_count(p, job, 1);
    return job;
}

/* The order to fill the file, in *taken: TAKEN without one where somebody else fills it. Under both
 * locks. */
static enum answer find_order(struct pool *p, struct monarch_catalog *c, uint64_t id, uint64_t ino,
                              struct job **taken) {
    unsigned state = id < c->count ? MONARCH_WORD_STATE(monarch_entries(c)[id].word) : 0;
    *taken = NULL;
    if (id >= c->count || monarch_entries(c)[id].ino != ino)
        return ANOTHERS;
    if (p->free_slots == 0)
        return REFUSED;
    if (state == MONARCH_FILLING)
        *taken = take_queued(p, id);
    if (state != MONARCH_ABSENT && state != MONARCH_WANTED)
        ;
    else if (!p->grant.holds)
        return NOT_YET;
    else if (!(*taken = place(p, c, id)))
        return REFUSED;
    if (*taken)
        (*taken)->slot = p->slot[--p->free_slots];
    return TAKEN;
}

static enum answer try(struct pool *p, uint64_t id, uint64_t ino, struct job **taken) {
    struct monarch_writer *w = p->shared.writer;
    if (!monarch_lock_soon(w))
        return NOT_YET;
    pthread_mutex_lock(&p->lock);
    enum answer answer = find_order(p, w->catalog, id, ino, taken);
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_unlock(&w->lock);
    return answer;
}

/* Policy orders the fill, or sees why there is no room, or which node keeps the file. */
static void ask_policy(struct pool *p, uint64_t id) {
    if (monarch_set_bit(&p->shared.clients->wanted, id))
        monarch_end_rest(p);
}

/* While the daemon's loop decides there is no grant: its turns are short. What has no place in a
 * grant waits for policy's order. NULL: another one fills the file, or no order came. */
static struct job *order(struct pool *p, int fd, uint64_t id) {
    uint64_t until = monarch_now_ns() + GRANT_NS, ino = monarch_inode_of(fd);
    struct job *job = NULL;
    int is_asked = 0;
    for (uint64_t now; (now = monarch_now_ns()) < until;) {
        if (monarch_is_recalled(p->shared.clients, id, now))
            break;
        uint32_t seen = __atomic_load_n(&p->grant.number, __ATOMIC_SEQ_CST);
        enum answer answer = try(p, id, ino, &job);
        if (answer == TAKEN)
            return job;
        if (answer == ANOTHERS)
            break;
        if (answer == REFUSED && !is_asked)
            ask_policy(p, id);
        is_asked |= answer == REFUSED;
        struct timespec left = {0, (long)(until - now)};
        syscall(SYS_futex, &p->grant.number, FUTEX_WAIT_PRIVATE, seen, &left, NULL, 0);
    }
    if (!is_asked)
        ask_policy(p, id);
    return NULL;
}

static void take(struct taker *me, int fd, const struct monarch_handover *what) {
    struct pool *p = me->all->pool;
    uint64_t id = what->id;
    struct job *job = fd >= 0 ? order(p, fd, id) : NULL;
    if (job) {
        job->handed = fd;
        job->claim = id;
        job->is_read = what->is_read != 0;
        monarch_do_handed(&me->worker, job);
        return;
    }
    if (fd >= 0)
        close(fd);
    else
        ask_policy(p, id);
    monarch_end_claim(p->shared.clients, id);
}

/* --- files without an entry ---------------------------------------------------------------------
 * Python takes their attributes into the catalog, as it does with what a scan has found, and orders
 * their fills. */

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

static void give_back(struct handovers *h, struct unmet *u) {
    if (u->fd >= 0) {
        close(u->fd);
        monarch_end_claim(h->pool->shared.clients, u->claim);
    }
    u->fd = -1;
}

static void drop_unmet(struct handovers *h, struct unmet *u) {
    give_back(h, u);
    free(u);
}

/* The name must lead to the file of the descriptor. */
static struct unmet *look_at_unmet(struct pool *p, int fd, const struct monarch_handover *what) {
    char target[1];
    struct stat st;
    struct unmet *u = calloc(1, sizeof *u);
    uint64_t dev = p->shared.control->source[what->source].dev;
    if (u && is_plain(what->path) && fstat(fd, &st) == 0 && st.st_dev == dev &&
        monarch_stat_entry(p->roots[what->source], what->source, what->path, &u->entry, target,
                           sizeof target) == 0 &&
        u->entry.kind == MONARCH_FILE && u->entry.ino == st.st_ino) {
        *u = (struct unmet){.fd = fd,
                            .is_read = what->is_read != 0,
                            .claim = what->id,
                            .since_ns = monarch_now_ns(),
                            .entry = u->entry};
        u->entry.path_len = (uint16_t)what->path_len;
        memcpy(u->path, what->path, what->path_len + 1);
        return u;
    }
    free(u);
    return NULL;
}

static void take_unmet(struct handovers *h, int fd, const struct monarch_handover *what) {
    struct unmet *u = fd >= 0 ? look_at_unmet(h->pool, fd, what) : NULL;
    pthread_mutex_lock(&h->lock);
    int is_kept = u && h->unmet_count < UNMET;
    if (is_kept)
        h->unmet[h->unmet_count++] = u;
    pthread_mutex_unlock(&h->lock);
    if (is_kept) {
        monarch_end_rest(h->pool);
    } else if (u) {
        drop_unmet(h, u);
    } else {
        if (fd >= 0)
            close(fd);
        monarch_end_claim(h->pool->shared.clients, what->id);
    }
}

uint64_t monarch_engine_unmet(struct monarch_engine *e, unsigned source,
                              struct monarch_entry *entries, uint64_t max, char *pool) {
    struct handovers *h = ((struct pool *)e)->handovers;
    uint64_t n = 0, used = 0, now = monarch_now_ns();
    pthread_mutex_lock(&h->lock);
    for (unsigned i = 0; i < h->unmet_count;) {
        struct unmet *u = h->unmet[i];
        if (u->is_told && !u->is_ordered && now - u->since_ns > UNMET_NS) {
            drop_unmet(h, u);
            h->unmet[i] = h->unmet[--h->unmet_count];
            continue;
        }
        if (monarch_is_recalled(h->pool->shared.clients, u->claim, now))
            give_back(h, u);
        if (!u->is_told && u->entry.source == source && n < max) {
            u->is_told = 1;
            entries[n] = u->entry;
            entries[n++].path = used;
            memcpy(pool + used, u->path, u->entry.path_len + 1u);
            used += u->entry.path_len + 1u;
        }
        i++;
    }
    pthread_mutex_unlock(&h->lock);
    return n;
}

/* Its place in the table; -1 for none. Under the lock. */
static int place_of_unmet(const struct handovers *h, const struct job *job) {
    for (unsigned i = 0; i < h->unmet_count; i++)
        if (h->unmet[i]->entry.source == job->entry.source &&
            strcmp(h->unmet[i]->path, job->path) == 0)
            return (int)i;
    return -1;
}

void monarch_keep_unmet(struct pool *p, struct job *job) {
    struct handovers *h = p->handovers;
    if (!h || job->result.kind != MONARCH_FILL || monarch_way_of(job) != MONARCH_FROM_SOURCE)
        return;
    pthread_mutex_lock(&h->lock);
    int i = place_of_unmet(h, job);
    if (i >= 0)
        h->unmet[i]->is_ordered = job->is_unmet = 1;
    pthread_mutex_unlock(&h->lock);
}

void monarch_take_unmet(struct pool *p, struct job *job) {
    struct handovers *h = p->handovers;
    struct unmet *u = NULL;
    pthread_mutex_lock(&h->lock);
    int i = place_of_unmet(h, job);
    if (i >= 0) {
        u = h->unmet[i];
        h->unmet[i] = h->unmet[--h->unmet_count];
    }
    pthread_mutex_unlock(&h->lock);
    if (u && u->fd >= 0 && job->handed < 0) {
        job->handed = u->fd;
        job->claim = u->claim;
        job->is_read = u->is_read;
        u->fd = -1;
    }
    if (u)
        drop_unmet(h, u);
}

/* --- the threads --------------------------------------------------------------------------------
 */

static int is_valid(const struct monarch_handover *what, ssize_t n) {
    const ssize_t before = offsetof(struct monarch_handover, path);
    if (n == offsetof(struct monarch_handover, source))
        return what->id < MONARCH_MAX_FILES;
    return n > before && monarch_is_unmet(what->id) && what->source < MONARCH_MAX_SOURCES &&
           what->path_len < MONARCH_MAIL_PATH && n == before + what->path_len + 1 &&
           strnlen(what->path, what->path_len + 1u) == what->path_len;
}

/* The next file, and its descriptor: -1 where this process may have no more. Whether what came
 * names a file. */
static int receive(int socket, struct monarch_handover *what, int *fd) {
    struct iovec part = {what, sizeof *what};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    const struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&message) : NULL;
    *fd = -1;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(c), sizeof *fd);
    int is_ours = n > 0 && is_valid(what, n);
    if (*fd >= 0 && !is_ours)
        close(*fd);
    return is_ours;
}

static void *take_all(void *arg);

static void start(struct handovers *h) {
    struct taker *fresh = &h->taker[h->threads];
    pthread_attr_t attributes;
    char *buffer = monarch_map_buffer();
    if (!buffer)
        return;
    fresh->all = h;
    fresh->worker =
        (struct worker){.pool = h->pool, .way = MONARCH_FROM_SOURCE, .peer = -1, .buffer = buffer};
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    if (pthread_create(&fresh->worker.thread, &attributes, take_all, fresh) == 0) {
        pthread_setname_np(fresh->worker.thread, "monarch-take");
        h->threads++;
        h->waiting++;
    } else {
        monarch_unmap_buffer(buffer);
    }
    pthread_attr_destroy(&attributes);
}

/* Whether somebody else is left to wait for the next one. */
static void change_waiting(struct handovers *h, int by) {
    pthread_mutex_lock(&h->lock);
    h->waiting += by;
    if (!h->waiting && h->threads < THREADS)
        start(h);
    pthread_mutex_unlock(&h->lock);
}

static void *take_all(void *arg) {
    struct taker *me = arg;
    struct handovers *h = me->all;
    const int *stopping = &h->pool->shared.stopping;
    while (!__atomic_load_n(stopping, __ATOMIC_ACQUIRE)) {
        struct monarch_handover what;
        int fd;
        if (!receive(h->socket, &what, &fd))
            continue;
        change_waiting(h, -1);
        if (monarch_is_unmet(what.id))
            take_unmet(h, fd, &what);
        else
            take(me, fd, &what);
        change_waiting(h, 1);
    }
    monarch_unmap_buffer(me->worker.buffer);
    return NULL;
}

int monarch_engine_handovers(struct monarch_engine *e, int socket) {
    struct pool *p = (struct pool *)e;
    struct handovers *h = calloc(1, sizeof *h);
    if (!h)
        return -1;
    h->pool = p;
    h->socket = socket;
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_lock(&h->lock);
    start(h);
    int is_started = h->threads > 0;
    pthread_mutex_unlock(&h->lock);
    if (is_started) {
        p->handovers = h;
        return 0;
    }
    pthread_mutex_destroy(&h->lock);
    free(h);
    return -1;
}

void monarch_end_handovers(struct pool *p) {
    if (p->handovers)
        shutdown(p->handovers->socket, SHUT_RDWR);
}

int monarch_join_handovers(struct pool *p, const struct timespec *until) {
    struct handovers *h = p->handovers;
    int left = 0;
    if (!h)
        return 0;
    /* One that was about to start others has done so when it is joined. */
    for (int i = 0; i < h->threads; i++)
        left += !monarch_join(h->taker[i].worker.thread, until);
    if (left)
        return left;
    for (unsigned i = 0; i < h->unmet_count; i++)
        drop_unmet(h, h->unmet[i]);
    pthread_mutex_destroy(&h->lock);
    free(h);
    p->handovers = NULL;
    return 0;
}
