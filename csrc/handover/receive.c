/* The sockets on which programs hand over descriptors, and the threads that receive the
 * descriptors.
 *
 * A message has a descriptor, and the number of its file's entry or the file's path. A program may
 * send a wrong number or path. So a fill uses the descriptor only if it refers to the file that the
 * catalog describes. The threads have no other work, so that each descriptor is closed soon. This
 * matters to programs that lock the file (flock), because the lock lasts until the last descriptor
 * of the open file is closed. */
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "copy/source_file.h"
#include "engine/grant.h"
#include "engine/work.h"
#include "handover/kept.h"
#include "publish/writer.h"
#include "shared/claims.h"
#include "shared/clock.h"
#include "shared/joining.h"

/* Maximum number of threads. Each thread copies one file at a time. It mostly waits until the
 * source confirms that the file is unchanged, so many threads take little processor time. */
#define THREADS 32
#define STACK_BYTES (256 * 1024)

/* While messages come often, the receiving thread polls: it looks for a message every POLL_NS [ns].
 * Then a program that sends a message need not wake a thread, which would take several
 * microseconds. OFTEN_NS: messages come often if the last two came within this time. POLLS: after
 * this many intervals without a message, the thread sleeps until the next one. STANDBY_NS: interval
 * at which another thread checks whether it must become the receiving thread (take_over). */
#define OFTEN_NS 4000000
#define POLL_NS 2000000
#define POLLS 2
#define STANDBY_NS 5000000

struct handovers {
    struct pool *pool;
    int epoll; /* watches all sockets and `end` */
    int end;   /* an eventfd; a value written to it makes all threads end */
    /* Used by the receiving thread only. last_ns: when it last received a message. is_often:
     * whether messages come often (OFTEN_NS). */
    uint64_t last_ns;
    int is_often;
    int is_asleep;        /* atomic: whether the receiving thread sleeps until a message wakes it */
    pthread_mutex_t lock; /* guards all fields below; no other lock is taken while it is held */
    uint32_t bell;        /* a futex, incremented to wake waiting threads, which sleep on it */
    /* threads: how many run; waiting: how many of them wait until they may receive */
    int threads, waiting;
    /* whether a thread is the receiving thread; there is at most one at a time */
    int has_receiver;
    int has_standby; /* whether one of the waiting threads is the standby (`take_over`) */
    struct taker {
        struct handovers *all;
        struct worker worker;
    } taker[THREADS];
};

/* --- one file --------------------------------------------------------------------------------- */

/* Returns whether the path is in the form that the scan uses: no component is empty, "." or
 * "..". */
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

/* Reads the attributes of the file at h->path. Returns whether the descriptor refers to this file.
 * Uses attributes that the kernel has cached, because the fill later asks the source's server. */
static int describe(const struct pool *p, struct handed *h, unsigned source, uint64_t dev) {
    char target[1];
    uint64_t ino = h->entry.ino;
    return is_plain(h->path) && dev == p->shared.control->source[source].dev &&
           monarch_statx_entry(p->roots[source], source, h->path, AT_STATX_DONT_SYNC, &h->entry,
                               target, sizeof target) == 0 &&
           h->entry.kind == MONARCH_FILE && h->entry.ino == ino;
}

/* Makes a `struct handed` for a received descriptor. Returns NULL if memory is exhausted, or if the
 * descriptor refers to no regular file or to another file than the received path. The descriptor
 * then stays open. */
static struct handed *new_handed(const struct pool *p, int fd,
                                 const struct monarch_handover *what) {
    int is_known = !monarch_is_unmet(what->id);
    size_t path_len = is_known ? 0 : what->path_len;
    uint64_t dev, ino = monarch_inode_of(fd, &dev);
    struct handed *h = ino ? calloc(1, sizeof *h + path_len + 1) : NULL;
    if (!h)
        return NULL;
    h->fd = fd;
    h->is_read = what->is_read != 0;
    h->id = is_known ? what->id : MONARCH_NO_ENTRY;
    h->claim = what->id;
    h->since_ns = monarch_now_ns();
    h->entry.ino = ino;
    h->renames = __atomic_load_n(&p->shared.clients->renames, __ATOMIC_SEQ_CST);
    memcpy(h->path, what->path, path_len);
    if (!is_known && !describe(p, h, what->source, dev)) {
        free(h);
        return NULL;
    }
    h->entry.path_len = (uint16_t)path_len;
    return h;
}

/* Finds or makes the order to fill the file, and assigns a slot to the order, so that the fill can
 * begin at once. */
static enum monarch_answer order(struct pool *p, struct handed *h, struct job **job) {
    struct monarch_writer *w = p->shared.writer;
    enum monarch_answer answer = MONARCH_NOT_YET;
    *job = NULL;
    if (!monarch_lock_soon(w))
        return answer;
    pthread_mutex_lock(&p->lock);
    if (p->free_slots)
        answer = monarch_order_handed(p, w->catalog, h, job);
    if (*job)
        (*job)->slot = p->slot[--p->free_slots];
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_unlock(&w->lock);
    return answer;
}

/* Decides what becomes of a descriptor that no order takes now. Usually, keeps it until there is an
 * order to fill its file. Closes it in four cases: no order will need it; it does not belong to the
 * entry's file; the program wants it closed; or the table of kept descriptors is full. */
static void leave(struct pool *p, struct handed *h, enum monarch_answer answer) {
    int is_refused = answer == MONARCH_REFUSED;
    int waits = is_refused || answer == MONARCH_NOT_YET || h->id == MONARCH_NO_ENTRY;
    int asks = answer != MONARCH_TAKEN && answer != MONARCH_NOT_YET && monarch_asks_policy(p, h);
    if (!waits || !monarch_keep(p->kept, h, is_refused)) {
        asks |= answer == MONARCH_NOT_YET && monarch_asks_policy(p, h);
        monarch_give_back(p, h);
        free(h);
    }
    if (asks)
        monarch_end_rest(p);
}

static void take(struct taker *me, struct handed *h) {
    struct pool *p = me->all->pool;
    struct job *job = NULL;
    enum monarch_answer answer = MONARCH_ANOTHERS;
    if (!monarch_is_recalled(p->shared.clients, h->claim, monarch_now_ns()))
        answer = order(p, h, &job);
    else
        monarch_give_back(p, h);
    if (!job) {
        leave(p, h, answer);
        return;
    }
    monarch_hand_to(h, job);
    free(h);
    monarch_do_handed(&me->worker, job);
}

/* Closes a descriptor that cannot be used. If the file has an entry, asks the daemon to order a
 * fill instead. fd: -1 if this process has reached its limit of open descriptors, so that none was
 * received. */
static void take_none(struct pool *p, int fd, const struct monarch_handover *what) {
    if (fd >= 0)
        close(fd);
    if (!monarch_is_unmet(what->id) && monarch_set_bit(&p->shared.clients->wanted, what->id))
        monarch_end_rest(p);
    monarch_end_claim(p->shared.clients, what->id);
}

/* --- the threads ------------------------------------------------------------------------------ */

static int is_valid(const struct monarch_handover *what, ssize_t n) {
    const ssize_t before = offsetof(struct monarch_handover, path);
    if (n == offsetof(struct monarch_handover, source))
        return what->id < MONARCH_MAX_FILES;
    return n > before && monarch_is_unmet(what->id) && what->source < MONARCH_MAX_SOURCES &&
           what->path_len < MONARCH_SCAN_HINT_PATH && n == before + what->path_len + 1 &&
           strnlen(what->path, what->path_len + 1u) == what->path_len;
}

/* Waits until a message has arrived, or until the threads must end. Returns the socket with the
 * message; -1 if there is none. */
static int await_message(struct handovers *h) {
    const struct timespec interval = {0, POLL_NS};
    struct epoll_event from;
    int found = 0;
    for (int polls = 0; h->is_often && polls <= POLLS && !found; polls++) {
        if (polls)
            nanosleep(&interval, NULL);
        found = epoll_wait(h->epoll, &from, 1, 0);
    }
    if (!found) {
        __atomic_store_n(&h->is_asleep, 1, __ATOMIC_RELAXED);
        found = epoll_wait(h->epoll, &from, 1, -1);
        __atomic_store_n(&h->is_asleep, 0, __ATOMIC_RELAXED);
    }
    return found == 1 && from.data.fd != h->end ? from.data.fd : -1;
}

/* Receives the next message, and sets *fd to its descriptor; -1: this process has reached its limit
 * of open descriptors. Returns 1 if the message is valid, so that it identifies a file. Returns 0
 * otherwise, or if the threads must end. */
static int receive(struct handovers *h, struct monarch_handover *what, int *fd) {
    struct iovec part = {what, sizeof *what};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             /* CMSG_SPACE would add padding, in which a sender could put a second
                              * descriptor. Nobody would close it. */
                             .msg_controllen = CMSG_LEN(sizeof(int))};
    int from = await_message(h);
    if (from < 0)
        return 0;
    ssize_t n = recvmsg(from, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    uint64_t now = monarch_now_ns();
    h->is_often = now - h->last_ns < OFTEN_NS;
    h->last_ns = now;
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
    fresh->worker = (struct worker){
        .pool = h->pool, .origin = MONARCH_FROM_SOURCE, .peer = -1, .buffer = buffer};
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

/* Wakes up to `most` of the waiting threads. */
static void ring(struct handovers *h, int most) {
    pthread_mutex_lock(&h->lock);
    h->bell++;
    pthread_mutex_unlock(&h->lock);
    syscall(SYS_futex, &h->bell, FUTEX_WAKE_PRIVATE, most, NULL, NULL, 0);
}

/* Waits until no thread receives, and makes the caller the receiving thread. When the receiving
 * thread begins to copy a file, another thread must be able to replace it. To wake one each time
 * would be slow. So while messages come often, one waiting thread is the standby: every STANDBY_NS,
 * it looks whether a thread receives, and takes over if none does. Usually, the first thread has
 * copied its file by then, and receives again itself. */
static void take_over(struct handovers *h) {
    const struct timespec limit = {0, STANDBY_NS};
    pthread_mutex_lock(&h->lock);
    while (h->has_receiver && !__atomic_load_n(&h->pool->shared.stopping, __ATOMIC_ACQUIRE)) {
        uint32_t seen = h->bell;
        int is_standby = !h->has_standby && !__atomic_load_n(&h->is_asleep, __ATOMIC_RELAXED);
        h->has_standby |= is_standby;
        pthread_mutex_unlock(&h->lock);
        syscall(SYS_futex, &h->bell, FUTEX_WAIT_PRIVATE, seen, is_standby ? &limit : NULL, NULL, 0);
        pthread_mutex_lock(&h->lock);
        h->has_standby &= !is_standby;
    }
    h->has_receiver = 1;
    h->waiting--;
    pthread_mutex_unlock(&h->lock);
}

/* Call this before the receiving thread begins to copy a file. From then on, it is not the
 * receiving thread. If there is no standby, wakes a waiting thread. If no thread waits, starts one,
 * unless THREADS threads run. */
static void hand_on(struct handovers *h) {
    pthread_mutex_lock(&h->lock);
    h->has_receiver = 0;
    int rings = !h->has_standby && h->waiting;
    if (!h->waiting && h->threads < THREADS)
        start(h);
    pthread_mutex_unlock(&h->lock);
    if (rings)
        ring(h, 1);
}

static void *take_all(void *arg) {
    struct taker *me = arg;
    struct handovers *h = me->all;
    const int *stopping = &h->pool->shared.stopping;
    for (;;) {
        struct monarch_handover what;
        int fd, has_one = 0;
        take_over(h);
        while (!has_one && !__atomic_load_n(stopping, __ATOMIC_ACQUIRE))
            has_one = receive(h, &what, &fd);
        if (!has_one)
            break;
        hand_on(h);
        struct handed *file = fd >= 0 ? new_handed(h->pool, fd, &what) : NULL;
        if (file)
            take(me, file);
        else
            take_none(h->pool, fd, &what);
        pthread_mutex_lock(&h->lock);
        h->waiting++;
        pthread_mutex_unlock(&h->lock);
    }
    monarch_unmap_buffer(me->worker.buffer);
    return NULL;
}

static int watch(const struct handovers *h, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(h->epoll, EPOLL_CTL_ADD, fd, &event);
}

static int watch_all(const struct handovers *h, const int *sockets, int n) {
    int failed = h->epoll < 0 || h->end < 0 || watch(h, h->end) != 0;
    for (int i = 0; i < n && !failed; i++)
        failed = watch(h, sockets[i]) != 0;
    return !failed;
}

static void free_handovers(struct handovers *h) {
    if (h->epoll >= 0)
        close(h->epoll);
    if (h->end >= 0)
        close(h->end);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

static void end(struct pool *p) {
    if (p->handovers) {
        eventfd_write(p->handovers->end, 1);
        ring(p->handovers, THREADS);
    }
    if (p->kept)
        monarch_end_kept(p->kept);
}

static int join(struct pool *p, const struct timespec *until) {
    struct handovers *h = p->handovers;
    int left = p->kept && !monarch_join_kept(p->kept, until);
    /* A thread that is joined here may have started further threads before it ended. It has counted
     * them in h->threads. So read h->threads again after each join. */
    for (int i = 0; h && i < h->threads; i++)
        left += !monarch_join(h->taker[i].worker.thread, until);
    return left;
}

static void free_all(struct pool *p) {
    if (p->kept)
        monarch_free_kept(p->kept);
    if (p->handovers)
        free_handovers(p->handovers);
    p->listener = NULL;
    p->kept = NULL;
    p->handovers = NULL;
}

static const struct listener listener = {
    .made = monarch_note_kept,
    .begins = monarch_take_kept,
    .granted = monarch_look_at_kept,
    .ends = end,
    .joins = join,
    .frees = free_all,
};

int monarch_engine_handovers(struct monarch_engine *e, const int *sockets, int n) {
    struct pool *p = (struct pool *)e;
    struct handovers *h = calloc(1, sizeof *h);
    if (!h)
        return -1;
    h->pool = p;
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    h->end = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&h->lock, NULL);
    if (watch_all(h, sockets, n))
        p->kept = monarch_new_kept(p);
    p->listener = p->kept ? &listener : NULL;
    pthread_mutex_lock(&h->lock);
    if (p->kept)
        start(h);
    int is_started = h->threads > 0;
    pthread_mutex_unlock(&h->lock);
    if (is_started)
        p->handovers = h;
    else
        free_handovers(h);
    return is_started ? 0 : -1;
}
