/* The threads of the peer server, which sends this node's copies to other nodes. Each connection is
 * a small state machine, on which only one thread at a time works. Work begins when the
 * connection's socket is ready, when the bytes for which it waits may be available, or when its
 * deadline has passed. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "peers/connection.h"
#include "shared/buffer.h"

/* While any connection has a request, deadlines are checked at this interval [ms]. */
#define TICK_MS 100
/* While no connection has a request, deadlines are checked at this interval [ms]. So the threads of
 * an idle server wake only rarely. */
#define IDLE_TICK_MS 5000
/* Size of a socket's send buffer [bytes]. It must be larger than the number of bytes that can be in
 * flight. A thread that has filled the buffer is woken only when a third of it is free. Until then,
 * the kernel must have enough bytes to send. */
#define SEND_ROOM (4 << 20)

typedef struct monarch_peer_connection connection;
typedef struct monarch_peer_server server;

struct monarch_peer_server {
    struct monarch_peer_files files;
    struct monarch_peer_bounds bounds;
    /* guards the fields from `open` to `used`, and those fields of each connection that belong to
     * the server (connection.h) */
    pthread_mutex_t lock;
    uint64_t open, accepted, dropped;
    uint32_t *waits;  /* indexes of the connections that wait for bytes, unsorted */
    uint32_t waiting; /* atomic: the number of connections in `waits` */
    uint32_t used;    /* the first `used` elements of `at` are or were in use */
    uint64_t requests, bytes, active, next_sweep_ns; /* atomic */
    uint64_t wakes; /* atomic: number of calls so far that wake connections; see has_waiting */
    /* stopping: atomic; stop: an eventfd, which becomes readable when the server stops */
    int epoll, stop, stopping, idle_tick_ms;
    int has_send_room;
    unsigned char content_key[MONARCH_KEY_BYTES];
    uint32_t threads;
    pthread_t *thread;
    connection *at; /* bounds.connections elements */
};

static uint64_t name_of(const server *s, const connection *c) {
    return (uint64_t)(c - s->at) << 32 | c->generation;
}

/* Claims the connection of an event, so that no other thread works on it. Returns NULL if it has
 * ended, or if another thread already works on it because its deadline has passed. */
static connection *claim(server *s, uint64_t name) {
    connection *c = &s->at[name >> 32];
    pthread_mutex_lock(&s->lock);
    int is_free = c->fd >= 0 && c->generation == (uint32_t)name && !c->is_busy;
    if (is_free)
        c->is_busy = 1;
    pthread_mutex_unlock(&s->lock);
    return is_free ? c : NULL;
}

static int is_active(const connection *c) { return c->state != MONARCH_PEER_READING || c->got > 0; }

static void close_locked(server *s, connection *c) {
    close(c->fd);
    monarch_mac_free(c->hears);
    monarch_mac_free(c->says);
    c->fd = -1;
    c->generation++;
    s->open--;
}

/* Requests the connection's next event from epoll. The caller holds the server's lock, and clears
 * `is_busy` before it releases the lock. Another thread may receive the event at once. But that
 * thread needs the lock to claim or close the connection. So it finds `is_busy` cleared, and the
 * descriptor stays open during this call. */
static void arm(server *s, connection *c, enum monarch_peer_io_state next) {
    uint32_t events = next == MONARCH_PEER_TO_READ ? EPOLLIN : EPOLLOUT;
    struct epoll_event e = {.events = EPOLLONESHOT | events, .data.u64 = name_of(s, c)};
    epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &e);
}

static void begin_to_wait(server *s, connection *c) {
    c->is_waiting = 1;
    c->wait_at = s->waiting;
    s->waits[c->wait_at] = (uint32_t)(c - s->at);
    __atomic_store_n(&s->waiting, s->waiting + 1, __ATOMIC_SEQ_CST);
}

static void end_to_wait(server *s, connection *c) {
    uint32_t last = s->waits[s->waiting - 1];
    __atomic_store_n(&s->waiting, s->waiting - 1, __ATOMIC_SEQ_CST);
    c->is_waiting = 0;
    s->waits[c->wait_at] = last;
    s->at[last].wait_at = c->wait_at;
}

/* Releases a connection after a step. wakes: the value of `wakes` before the step. Returns 0 if the
 * thread must continue instead: the connection was about to wait for bytes, but `wakes` has
 * changed, so the bytes may have become available. */
static int hand_back(server *s, connection *c, const struct monarch_peer_stage *stage,
                     enum monarch_peer_io_state next, uint64_t wakes) {
    int is_done = 1;
    if (next == MONARCH_PEER_TO_CLOSE)
        monarch_peer_let_go(c, stage);
    pthread_mutex_lock(&s->lock);
    if (next == MONARCH_PEER_TO_CLOSE) {
        s->dropped += is_active(c);
        close_locked(s, c);
    } else if (next != MONARCH_PEER_TO_WAIT) {
        arm(s, c, next);
    } else {
        begin_to_wait(s, c);
        is_done = __atomic_load_n(&s->wakes, __ATOMIC_SEQ_CST) == wakes;
        if (!is_done)
            end_to_wait(s, c);
    }
    c->is_busy = !is_done;
    pthread_mutex_unlock(&s->lock);
    return is_done;
}

/* Returns whether a thread may block in a call on its connection's socket, which costs less than a
 * wait with epoll. The other threads must be enough for all other active connections. */
static int can_stay(server *s) {
    return !__atomic_load_n(&s->stopping, __ATOMIC_ACQUIRE) &&
           __atomic_load_n(&s->active, __ATOMIC_RELAXED) < s->bounds.threads;
}

static enum monarch_peer_io_state step(server *s, connection *c, struct monarch_peer_stage *stage,
                                       int stays) {
    int was_active = is_active(c);
    stage->may_block = stays && can_stay(s);
    enum monarch_peer_io_state next = monarch_peer_step(c, stage);
    int active = next != MONARCH_PEER_TO_CLOSE && is_active(c);
    __atomic_fetch_add(&s->active, (uint64_t)(active - was_active), __ATOMIC_SEQ_CST);
    return next;
}

/* Works on a connection that the calling thread has claimed, and then releases it. Returns 1,
 * without releasing it, if the thread can send more on it. */
static int work_on(server *s, connection *c, struct monarch_peer_stage *stage, int stays) {
    for (int is_done = 0; !is_done;) {
        uint64_t wakes = __atomic_load_n(&s->wakes, __ATOMIC_SEQ_CST);
        enum monarch_peer_io_state next = step(s, c, stage, stays);
        if (next == MONARCH_PEER_TO_YIELD && stays && can_stay(s))
            return 1;
        is_done = hand_back(s, c, stage, next, wakes);
    }
    return 0;
}

/* --- waits and deadlines ---------------------------------------------------------------------- */

/* Claims the first connection from index *from on that has missed its deadline. Returns NULL if
 * there is none. Sets *from to the index at which the next search must begin. Sets *waited to 1 if
 * the connection was waiting for bytes of its file; 0: it was waiting for its peer. */
static connection *take_late(server *s, uint32_t *from, uint64_t now, int *waited) {
    connection *found = NULL;
    pthread_mutex_lock(&s->lock);
    for (; !found && *from < s->used; ++*from) {
        connection *c = &s->at[*from];
        if (c->fd < 0 || c->is_busy || c->deadline_ns > now)
            continue;
        found = c;
        c->is_busy = 1;
        *waited = c->is_waiting;
        if (c->is_waiting)
            end_to_wait(s, c);
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

static void sweep(server *s, struct monarch_peer_stage *stage) {
    uint64_t now = monarch_now_ns();
    uint64_t due = __atomic_load_n(&s->next_sweep_ns, __ATOMIC_RELAXED);
    uint64_t after = now + TICK_MS * 1000000ULL / 2;
    if (now < due || !__atomic_compare_exchange_n(&s->next_sweep_ns, &due, after, 0,
                                                  __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    uint32_t from = 0;
    int waited = 0;
    for (connection *c; (c = take_late(s, &from, now, &waited));) {
        if (waited) {
            work_on(s, c, stage, 0); /* ends the answer, but not the connection */
        } else {
            __atomic_fetch_sub(&s->active, (uint64_t)is_active(c), __ATOMIC_SEQ_CST);
            hand_back(s, c, stage, MONARCH_PEER_TO_CLOSE, 0);
        }
    }
}

/* Ends a connection's wait for bytes of its file. A free thread will continue with the connection
 * as soon as its socket accepts bytes. */
static void wake(server *s, connection *c) {
    end_to_wait(s, c);
    c->deadline_ns = monarch_now_ns() + s->bounds.stall_ms * 1000000ULL;
    arm(s, c, MONARCH_PEER_TO_SEND);
}

/* Increments `wakes`. Returns whether any connection waits. No wake-up is lost, even if another
 * thread is just leaving its connection waiting because it has found no bytes. To leave it, that
 * thread increments `waiting`, and then checks whether `wakes` has changed since it looked for
 * bytes (hand_back). So either this function sees that the connection waits, or that thread sees
 * the new value of `wakes`, and looks for bytes again. */
static int has_waiting(server *s) {
    __atomic_fetch_add(&s->wakes, 1, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&s->waiting, __ATOMIC_SEQ_CST) > 0;
}

void monarch_peer_wake(server *s, uint32_t source, uint64_t path_hash) {
    if (!has_waiting(s))
        return;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = s->waiting; i-- > 0;) {
        connection *c = &s->at[s->waits[i]];
        if (c->in.request.source == source && c->in.request.path_hash == path_hash)
            wake(s, c);
    }
    pthread_mutex_unlock(&s->lock);
}

void monarch_peer_wake_if(server *s,
                          int (*is_settled)(void *arg, const struct monarch_peer_request *wanted),
                          void *arg) {
    if (!has_waiting(s))
        return;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = s->waiting; i-- > 0;) {
        connection *c = &s->at[s->waits[i]];
        if (c->state == MONARCH_PEER_OPENING && is_settled(arg, &c->in.request))
            wake(s, c);
    }
    pthread_mutex_unlock(&s->lock);
}

static void *serve(void *arg) {
    server *s = arg;
    alignas(MONARCH_PAGE_BYTES) char buffer[MONARCH_PEER_CHUNK]; /* aligned as in buffer.h */
    struct monarch_peer_stage stage = {
        &s->files, &s->bounds, &s->requests, &s->bytes, buffer, monarch_mac_new(s->content_key), 0};
    /* Block all signals, because sendfile raises SIGPIPE if the peer has closed the connection.
     * Unlike send, sendfile has no flag MSG_NOSIGNAL. */
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (stage.content && !__atomic_load_n(&s->stopping, __ATOMIC_ACQUIRE)) {
        struct epoll_event event;
        /* All threads check deadlines, because a slow disk may block any single thread. */
        int tick = __atomic_load_n(&s->active, __ATOMIC_SEQ_CST) ? TICK_MS : s->idle_tick_ms;
        /* Take only one event, so that another thread can take the next one while this thread waits
         * for the disk. */
        int n = epoll_wait(s->epoll, &event, 1, tick);
        if (__atomic_load_n(&s->stopping, __ATOMIC_ACQUIRE))
            break;
        connection *c = n == 1 ? claim(s, event.data.u64) : NULL;
        while (c && work_on(s, c, &stage, 1))
            sweep(s, &stage);
        sweep(s, &stage);
    }
    monarch_mac_free(stage.content);
    return NULL;
}

/* --- calls from Python ------------------------------------------------------------------------ */

/* Returns whether sockets may have send buffers of SEND_ROOM bytes. If the system's limit is lower,
 * set no size at all: the kernel then enlarges the buffers itself as needed. */
static int can_have_send_room(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), room = SEND_ROOM;
    socklen_t n = sizeof room;
    int is_told = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, n) == 0 &&
                  getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, &n) == 0;
    if (fd >= 0)
        close(fd);
    return is_told && room >= 2 * SEND_ROOM; /* the kernel reports twice the size that was set */
}

/* Sets the socket's options. Some of them make the kernel detect peers that have vanished without
 * closing their connections. */
static void set_options(int fd, const struct monarch_peer_bounds *bounds, int has_send_room) {
    int on = 1, idle_s = 30, room = SEND_ROOM;
    unsigned timeout_ms = bounds->stall_ms;
    struct timeval stay = {0, MONARCH_PEER_STAY_MS * 1000};
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &stay, sizeof stay);
    if (has_send_room)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

/* Returns the index of a free element of `at`. If there is none, returns the index of the
 * connection that has been idle for the longest time; its peer can connect again later. Returns
 * bounds.connections if all connections have requests. */
static uint32_t find_place(server *s) {
    uint32_t idle = s->bounds.connections;
    for (uint32_t i = 0; i < s->bounds.connections; i++) {
        const connection *c = &s->at[i];
        if (c->fd < 0)
            return i;
        if (!c->is_busy && !is_active(c) &&
            (idle == s->bounds.connections || c->deadline_ns < s->at[idle].deadline_ns))
            idle = i;
    }
    return idle;
}

/* Stores the connection `fresh` in the element `c` of `at`. The caller holds the lock. Returns 0 or
 * -errno. */
static int enter_locked(server *s, connection *c, const connection *fresh) {
    uint32_t i = (uint32_t)(c - s->at), generation = c->generation;
    *c = *fresh;
    c->generation = generation;
    c->deadline_ns = monarch_now_ns() + s->bounds.idle_ms * 1000000ULL;
    s->used = i < s->used ? s->used : i + 1;
    set_options(c->fd, &s->bounds, s->has_send_room);
    struct epoll_event e = {.events = EPOLLONESHOT | EPOLLIN, .data.u64 = name_of(s, c)};
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, c->fd, &e) != 0) {
        c->fd = -1;
        return -errno;
    }
    s->open++;
    s->accepted++;
    return 0;
}

int monarch_peer_server_adopt(server *s, int fd, const struct monarch_peer_keys *keys) {
    connection fresh = {
        .fd = fd, .hears = monarch_mac_new(keys->theirs), .says = monarch_mac_new(keys->mine)};
    int r = fresh.hears && fresh.says ? -EBUSY : -ENOMEM;
    pthread_mutex_lock(&s->lock);
    uint32_t i = r == -EBUSY ? find_place(s) : s->bounds.connections;
    if (i < s->bounds.connections) {
        if (s->at[i].fd >= 0)
            close_locked(s, &s->at[i]);
        r = enter_locked(s, &s->at[i], &fresh);
    }
    pthread_mutex_unlock(&s->lock);
    if (r != 0) {
        monarch_mac_free(fresh.hears);
        monarch_mac_free(fresh.says);
    }
    return r;
}

int monarch_peer_server_has_room(server *s) {
    pthread_mutex_lock(&s->lock);
    int has_room = find_place(s) < s->bounds.connections;
    pthread_mutex_unlock(&s->lock);
    return has_room;
}

void monarch_peer_server_counts(server *s, struct monarch_peer_counts *out) {
    pthread_mutex_lock(&s->lock);
    out->connections = s->open;
    out->accepted = s->accepted;
    out->dropped = s->dropped;
    out->waiting = s->waiting;
    pthread_mutex_unlock(&s->lock);
    out->requests = __atomic_load_n(&s->requests, __ATOMIC_RELAXED);
    out->bytes = __atomic_load_n(&s->bytes, __ATOMIC_RELAXED);
}

void monarch_peer_end(server *s) {
    struct monarch_peer_stage stage = {.files = &s->files, .bounds = &s->bounds};
    uint64_t one = 1;
    __atomic_store_n(&s->stopping, 1, __ATOMIC_SEQ_CST);
    /* No thread reads from this eventfd. So it stays readable and wakes every thread. */
    while (s->stop >= 0 && write(s->stop, &one, sizeof one) < 0 && errno == EINTR)
        ;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->bounds.connections; i++)
        if (s->at[i].fd >= 0)
            shutdown(s->at[i].fd, SHUT_RDWR); /* wakes any thread that waits for this socket */
    pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < s->threads; i++)
        pthread_join(s->thread[i], NULL);
    for (uint32_t i = 0; i < s->bounds.connections; i++)
        if (s->at[i].fd >= 0) {
            monarch_peer_let_go(&s->at[i], &stage);
            close_locked(s, &s->at[i]);
        }
    if (s->epoll >= 0)
        close(s->epoll);
    if (s->stop >= 0)
        close(s->stop);
    pthread_mutex_destroy(&s->lock);
    free(s->thread);
    free(s->waits);
    free(s->at);
    free(s);
}

server *monarch_peer_serve(const struct monarch_peer_files *files,
                           const struct monarch_peer_bounds *bounds,
                           const unsigned char *content_key) {
    server *s = monarch_mac_is_there() ? calloc(1, sizeof *s) : NULL;
    if (!s)
        return NULL;
    s->files = *files;
    s->bounds = *bounds;
    memcpy(s->content_key, content_key, sizeof s->content_key);
    s->has_send_room = can_have_send_room();
    s->idle_tick_ms = bounds->idle_ms < IDLE_TICK_MS ? (int)bounds->idle_ms : IDLE_TICK_MS;
    s->at = calloc(bounds->connections, sizeof *s->at);
    s->waits = calloc(bounds->connections, sizeof *s->waits);
    s->thread = calloc(bounds->threads, sizeof *s->thread);
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->bounds.connections = s->at ? bounds->connections : 0;
    for (uint32_t i = 0; i < s->bounds.connections; i++)
        s->at[i].fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    struct epoll_event e = {.events = EPOLLIN};
    int has_memory = s->at && s->waits && s->thread;
    if (has_memory && epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->stop, &e) == 0)
        while (s->threads < bounds->threads &&
               pthread_create(&s->thread[s->threads], NULL, serve, s) == 0)
            pthread_setname_np(s->thread[s->threads++], "monarch-serve");
    if (s->threads)
        return s;
    monarch_peer_end(s);
    return NULL;
}
