/* Tests peers/server.c: how the server's threads start, loop and end, and what the server does if
 * the kernel refuses something. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

/* fails_at: the number of the allocation that fails, counted from 0. thread_fails_at: the number of
 * the thread that cannot be started. -1: none. */
static int calls_of_calloc, fails_at, threads_made, thread_fails_at, epoll_fails, mac_fails;
static void *scarce_calloc(size_t n, size_t size) {
    return calls_of_calloc++ == fails_at ? NULL : calloc(n, size);
}
static int make_thread(pthread_t *thread, const pthread_attr_t *a, void *(*run)(void *),
                       void *arg) {
    if (threads_made == thread_fails_at)
        return EAGAIN;
    threads_made++;
    return pthread_create(thread, a, run, arg);
}
static int control(int epoll, int how, int fd, struct epoll_event *event) {
    if (epoll_fails && how == EPOLL_CTL_ADD) {
        errno = ENOSPC;
        return -1;
    }
    return epoll_ctl(epoll, how, fd, event);
}

/* If `is_scripted` is set, a wait for events calls at_wait. The wait then returns one event with
 * the name event_name, or no event if event_name is UINT64_MAX. ticks: the limits of the waits. */
static int waits_left, ticks[8], ticked, is_scripted;
static uint64_t event_name;
static void (*at_wait)(void);
static int wait_for_event(int epoll, struct epoll_event *event, int most, int tick) {
    if (!is_scripted)
        return epoll_wait(epoll, event, most, tick);
    ticks[ticked++] = tick;
    event->data.u64 = event_name;
    at_wait();
    return event_name != UINT64_MAX;
}

/* room: the size that the kernel reports for a send buffer; -1: the real size. */
static int room = -1, asked_room;
static int get_option(int fd, int level, int name, void *value, socklen_t *n) {
    if (room < 0 || name != SO_SNDBUF)
        return getsockopt(fd, level, name, value, n);
    *(int *)value = room;
    return 0;
}
static int set_option(int fd, int level, int name, const void *value, socklen_t n) {
    if (name == SO_SNDBUF)
        asked_room = *(const int *)value;
    return setsockopt(fd, level, name, value, n);
}

#include "peers/connection.h"
static struct monarch_mac *scarce_mac(const unsigned char *key) {
    return mac_fails ? NULL : monarch_mac_new(key);
}
static int steps;
static enum monarch_peer_io_state (*take_step)(struct monarch_peer_connection *c,
                                               const struct monarch_peer_stage *stage);
static enum monarch_peer_io_state step_it(struct monarch_peer_connection *c,
                                          const struct monarch_peer_stage *stage) {
    steps++;
    return take_step(c, stage);
}
static int let_go;
static void let_it_go(struct monarch_peer_connection *c, const struct monarch_peer_stage *stage) {
    let_go++;
}
#define calloc scarce_calloc
#define pthread_create make_thread
#define epoll_ctl control
#define epoll_wait wait_for_event
#define getsockopt get_option
#define setsockopt set_option
#define monarch_mac_new scarce_mac
#define monarch_peer_step step_it
#define monarch_peer_let_go let_it_go
#include "peers/server.c"
#undef calloc
#undef monarch_mac_new

#define name_of name_of_file
#include "checks.h"
#undef name_of

#define MS 1000000ULL

static const unsigned char key[MONARCH_KEY_BYTES] = "the key";
static const struct monarch_peer_keys keys;
static struct monarch_peer_files files;
static struct monarch_peer_bounds bounds = {
    .threads = 3, .connections = 4, .idle_ms = 1000000, .stall_ms = 100000};

static server *begin(void) {
    calls_of_calloc = threads_made = steps = let_go = ticked = 0;
    return monarch_peer_serve(&files, &bounds, key);
}

static void nothing_fails(void) {
    fails_at = thread_fails_at = -1;
    epoll_fails = mac_fails = is_scripted = 0;
}

/* Makes a connection, and returns the peer's end of it. */
static int connect_to(server *s) {
    int two[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, two) == 0);
    SAME(monarch_peer_server_adopt(s, two[0], &keys), 0);
    CHECK(fcntl(two[0], F_GETFL) & O_NONBLOCK);
    return two[1];
}

/* A server starts all its threads. While no connection has a request, each thread sleeps for a long
 * time. When the server ends, all threads nevertheless end at once. Every connection is then
 * closed, together with the file that it has open. */
TEST(a_server_ends_at_once) {
    nothing_fails();
    int before = open_descriptors(), zero = open("/dev/null", O_RDONLY | O_CLOEXEC);
    server *s = begin();
    CHECK(s && zero == 0);
    close(zero); /* so the first connection gets descriptor 0 */
    SAME(threads_made, 3);
    SAME(s->threads, 3);
    SAME(s->idle_tick_ms, IDLE_TICK_MS);
    CHECK(memcmp(s->content_key, key, sizeof key) == 0);
    int peers[] = {connect_to(s), connect_to(s)};
    uint64_t since = monarch_now_ns();
    monarch_peer_end(s);
    CHECK(monarch_now_ns() - since < IDLE_TICK_MS / 2 * MS);
    SAME(let_go, 2);
    for (int i = 0; i < 2; i++) {
        char byte;
        SAME(read(peers[i], &byte, 1), 0);
        close(peers[i]);
    }
    SAME(open_descriptors(), before);
}

/* If the limit for idle connections is shorter than IDLE_TICK_MS, the threads wake as often as this
 * limit demands. */
TEST(an_idle_server_wakes_as_often_as_its_limits_ask) {
    nothing_fails();
    const uint32_t limits[] = {1, IDLE_TICK_MS - 1, IDLE_TICK_MS, IDLE_TICK_MS + 1, UINT32_MAX};
    for (int i = 0; i < 5; i++) {
        bounds.idle_ms = limits[i];
        server *s = begin();
        SAME(s->idle_tick_ms, limits[i] < IDLE_TICK_MS ? limits[i] : IDLE_TICK_MS);
        monarch_peer_end(s);
    }
}

/* A server is made only if there is memory for it and at least one thread can be started. Otherwise
 * nothing is left behind. If only some of the threads can be started, the server works with
 * these. */
TEST(a_server_starts_or_leaves_nothing) {
    int before = open_descriptors();
    for (int way = 0; way < 6; way++) {
        nothing_fails();
        fails_at = way < 4 ? way : -1;
        thread_fails_at = way == 4 ? 0 : -1;
        epoll_fails = way == 5;
        CHECK(!begin());
        SAME(threads_made, 0);
        SAME(open_descriptors(), before);
    }
    nothing_fails();
    thread_fails_at = 2;
    server *s = begin();
    CHECK(s && s->threads == 2);
    monarch_peer_end(s);
    SAME(open_descriptors(), before);
}

/* --- the loop of a thread --------------------------------------------------------------------- */

/* Makes a server without threads, and a connection. */
static server *lone;
static int peer;
static void make(void) {
    nothing_fails();
    bounds.threads = 0;
    bounds.idle_ms = 1000;
    lone = calloc(1, sizeof *lone);
    lone->bounds = bounds;
    lone->bounds.threads = 2;
    lone->idle_tick_ms = 777;
    lone->at = calloc(bounds.connections, sizeof *lone->at);
    lone->waits = calloc(bounds.connections, sizeof *lone->waits);
    lone->epoll = epoll_create1(EPOLL_CLOEXEC);
    lone->stop = eventfd(0, EFD_CLOEXEC);
    for (uint32_t i = 0; i < bounds.connections; i++)
        lone->at[i].fd = -1;
    pthread_mutex_init(&lone->lock, NULL);
    memcpy(lone->content_key, key, sizeof key);
    peer = connect_to(lone);
    event_name = name_of(lone, lone->at);
    is_scripted = 1;
    steps = ticked = 0;
}

static void done(void) {
    monarch_peer_end(lone);
    close(peer);
}

static void stop_after_waits(void) {
    lone->active = waits_left == 2;
    if (waits_left-- == 0)
        lone->stopping = 1;
}

static enum monarch_peer_io_state wait_again(connection *c, const struct monarch_peer_stage *st) {
    CHECK(c == lone->at && c->is_busy && st->may_block == 1);
    CHECK(st->files == &lone->files && st->bounds == &lone->bounds && st->content);
    CHECK(st->requests == &lone->requests && st->bytes == &lone->bytes);
    SAME((uintptr_t)st->buffer % MONARCH_PAGE_BYTES, 0);
    c->deadline_ns = UINT64_MAX;
    return MONARCH_PEER_TO_READ;
}

/* Until the server stops, a thread passes each event to the connection that the event concerns. The
 * thread wakes often while any connection has a request, and rarely otherwise. Signals are left to
 * other threads. */
TEST(a_thread_handles_events_until_the_server_stops) {
    make();
    take_step = wait_again;
    at_wait = stop_after_waits;
    waits_left = 3;
    SAME((long)serve(lone), 0);
    SAME(steps, 3); /* in the fourth wait, the server is told to stop, so the event is ignored */
    CHECK(ticked == 4 && ticks[0] == 777 && ticks[1] == 777 && ticks[2] == TICK_MS);
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    CHECK(sigismember(&blocked, SIGPIPE) && sigismember(&blocked, SIGTERM));
    ticked = 0;
    SAME((long)serve(lone), 0); /* the server is still stopping, so the thread does not wait */
    SAME(ticked, 0);
    SAME(lone->at[0].is_busy, 0);
    lone->active = 0;
    done();
}

/* A thread that gets no memory for its digests ends. The other threads go on. */
TEST(a_thread_without_memory_ends) {
    make();
    mac_fails = 1;
    SAME((long)serve(lone), 0);
    SAME(ticked, 0);
    done();
}

static enum monarch_peer_io_state yield_twice(connection *c, const struct monarch_peer_stage *st) {
    c->state = MONARCH_PEER_SENDING;
    c->deadline_ns = UINT64_MAX;
    if (steps == 1)
        lone->at[1].deadline_ns = lone->next_sweep_ns = 0;
    if (steps == 2) /* after step 1, the thread has closed the late connection */
        SAME(lone->at[1].fd, -1);
    return steps < 3 ? MONARCH_PEER_TO_YIELD : MONARCH_PEER_TO_CLOSE;
}

/* A thread may continue with one connection without a wait. From time to time, it still closes
 * other connections that are late. So a peer that never stops reading cannot keep late connections
 * of other peers open. */
TEST(a_busy_thread_keeps_the_deadlines) {
    make();
    is_scripted = 0;
    int late = connect_to(lone);
    is_scripted = 1;
    take_step = yield_twice;
    at_wait = stop_after_waits;
    waits_left = 1;
    serve(lone);
    SAME(steps, 3);
    SAME(lone->open, 0);
    close(late);
    done();
}

static void make_late(void) {
    if (waits_left == 1) {
        lone->at[0].deadline_ns = lone->next_sweep_ns = 0;
        event_name = UINT64_MAX;
    }
    stop_after_waits();
}

/* A thread looks for late connections after each wait, even if the wait has returned no event. */
TEST(a_thread_without_events_keeps_the_deadlines) {
    make();
    at_wait = make_late;
    waits_left = 1;
    serve(lone);
    CHECK(steps == 0 && lone->open == 0);
    done();
}

/* --- refusals of the kernel ------------------------------------------------------------------- */

/* If a new connection cannot be watched, or if there is no memory for its seals, the server refuses
 * it. The caller then keeps the socket, and the connection's place in the server stays free. */
TEST(a_refused_connection_stays_the_callers) {
    make();
    int two[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, two) == 0);
    for (int way = 0; way < 2; way++) {
        epoll_fails = way;
        mac_fails = !way;
        SAME(monarch_peer_server_adopt(lone, two[0], &keys), way ? -ENOSPC : -ENOMEM);
        CHECK(fcntl(two[0], F_GETFD) >= 0 && lone->at[1].fd == -1);
        CHECK(lone->open == 1 && lone->accepted == 1);
        SAME(monarch_peer_server_has_room(lone), 1);
    }
    nothing_fails();
    uint32_t was = lone->at[1].generation;
    SAME(monarch_peer_server_adopt(lone, two[0], &keys), 0);
    CHECK(lone->at[1].fd == two[0] && lone->at[1].generation == was && lone->accepted == 2);
    close(two[1]);
    done();
}

/* The size of send buffers is set only if the kernel's limit allows the full size. Otherwise the
 * kernel chooses the size. */
TEST(send_buffers_are_large_or_the_kernels) {
    const struct {
        int told, can;
    } cases[] = {{2 * SEND_ROOM, 1}, {2 * SEND_ROOM - 1, 0}, {4 * SEND_ROOM, 1}, {SEND_ROOM, 0}};
    int before = open_descriptors();
    nothing_fails();
    bounds.threads = 1;
    for (int i = 0; i < 4; i++) {
        room = cases[i].told;
        server *s = begin();
        SAME(s->has_send_room, cases[i].can);
        SAME(asked_room, SEND_ROOM);
        asked_room = 0;
        int end = connect_to(s);
        SAME(asked_room, cases[i].can ? SEND_ROOM : 0);
        monarch_peer_end(s);
        close(end);
    }
    SAME(open_descriptors(), before);
}
