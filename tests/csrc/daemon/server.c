#include "set_clock.h"

/* Replacements for functions of connection.c. Each step returns what the test has set. */
#include "peers/connection.h"
static enum monarch_peer_io_state step_it(struct monarch_peer_connection *c,
                                          const struct monarch_peer_stage *stage);
static int let_go;
static void let_it_go(struct monarch_peer_connection *c, const struct monarch_peer_stage *stage) {
    let_go++;
}
#define monarch_peer_step step_it
#define monarch_peer_let_go let_it_go
#include "peers/server.c"

#define name_of name_of_file
#include "checks.h"
#undef name_of

#define MS 1000000ULL

static server *s;
static struct monarch_peer_stage stage;
static int ends[64], steps;
/* returns: what the next steps return. meanwhile: what each step calls. may_block: whether each
 * step was allowed to block. */
static enum monarch_peer_io_state returns[16];
static void (*meanwhile)(connection *c);
static int may_block[16];

static enum monarch_peer_io_state step_it(connection *c, const struct monarch_peer_stage *with) {
    CHECK(c->is_busy && with == &stage && steps < 16);
    may_block[steps] = with->may_block;
    if (meanwhile)
        meanwhile(c);
    return returns[steps++];
}

/* Makes a server without threads. */
static void make(uint32_t connections, uint32_t threads) {
    s = calloc(1, sizeof *s);
    s->bounds = (struct monarch_peer_bounds){
        .threads = threads, .connections = connections, .idle_ms = 1000, .stall_ms = 100};
    s->at = calloc(connections, sizeof *s->at);
    s->waits = calloc(connections, sizeof *s->waits);
    s->thread = calloc(1, sizeof *s->thread);
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->stop = eventfd(0, EFD_CLOEXEC);
    for (uint32_t i = 0; i < connections; i++)
        s->at[i].fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    stage = (struct monarch_peer_stage){.bounds = &s->bounds};
    steps = let_go = 0;
    meanwhile = NULL;
}

static int adopt(void) {
    static const struct monarch_peer_keys keys;
    int two[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, two) == 0);
    int r = monarch_peer_server_adopt(s, two[0], &keys);
    if (r != 0)
        close(two[0]);
    for (uint32_t i = 0; i < s->bounds.connections && r == 0; i++)
        if (s->at[i].fd == two[0]) {
            if (ends[i] > 0)
                close(ends[i]);
            ends[i] = two[1];
            return (int)i;
        }
    close(two[1]);
    return r;
}

static void done(void) {
    uint32_t n = s->bounds.connections;
    monarch_peer_end(s);
    for (uint32_t i = 0; i < n; i++)
        if (ends[i] > 0)
            close(ends[i]);
}

/* Returns whether epoll reports an event for this connection now. */
static int is_ready(uint32_t i) {
    struct epoll_event event;
    int found = 0;
    while (epoll_wait(s->epoll, &event, 1, 0) == 1)
        found |= event.data.u64 == name_of(s, &s->at[i]);
    return found;
}

/* A new connection takes a free place. If there is none, it replaces the connection that has been
 * idle for the longest time. A connection with a request or a thread is never replaced. */
TEST(a_new_connection_replaces_the_one_that_is_idle_for_longest) {
    make(4, 2);
    int before = open_descriptors();
    for (int i = 0; i < 4; i++) {
        SAME(monarch_peer_server_has_room(s), 1);
        SAME(adopt(), i);
        SAME(s->at[i].deadline_ns, time_ns + 1000 * MS);
        SAME(s->used, i + 1);
        time_ns += 5;
    }
    s->at[0].is_busy = 1;
    s->at[1].got = 1;
    s->at[3].state = MONARCH_PEER_SENDING;
    uint32_t was = s->at[2].generation;
    SAME(adopt(), 2);
    SAME(s->at[2].generation, was + 1);
    s->at[1].got = 0;
    SAME(adopt(), 1); /* connection 1 has been idle for longer than connection 2 */
    s->at[1].is_busy = s->at[2].is_busy = 1;
    SAME(monarch_peer_server_has_room(s), 0);
    SAME(adopt(), -EBUSY);
    SAME(open_descriptors(), before + 8);
    struct monarch_peer_counts counts;
    monarch_peer_server_counts(s, &counts);
    CHECK(counts.connections == 4 && counts.accepted == 6 && counts.dropped == 0);
    s->at[0].is_busy = s->at[1].is_busy = s->at[2].is_busy = 0;
    done();
}

/* An event is handled by only one thread, and only if the connection that it was meant for still
 * exists. */
TEST(an_event_of_an_ended_connection_is_ignored) {
    make(2, 2);
    SAME(adopt(), 0);
    SAME(adopt(), 1);
    uint64_t name = name_of(s, &s->at[1]);
    CHECK(claim(s, name) == &s->at[1] && s->at[1].is_busy);
    CHECK(!claim(s, name));
    s->at[1].is_busy = 0;
    close_locked(s, &s->at[1]);
    CHECK(!claim(s, name) && !s->at[1].is_busy);
    SAME(adopt(), 1);
    CHECK(!claim(s, name));
    CHECK(claim(s, name_of(s, &s->at[1])) == &s->at[1]);
    s->at[1].is_busy = 0;
    done();
}

/* A wake for a file ends the wait of all connections that wait for this file, and of no others. */
TEST(a_wake_reaches_those_that_wait_for_the_file) {
    make(6, 2);
    for (int i = 0; i < 6; i++) {
        SAME(adopt(), i);
        connection *c = &s->at[i];
        c->in.request.source = i % 3 == 2;
        c->in.request.path_hash = i % 2 ? 7 : 8;
        begin_to_wait(s, c);
    }
    end_to_wait(s, &s->at[3]);
    time_ns += 17;
    monarch_peer_wake(s, 0, 7);
    for (int i = 0; i < 6; i++) {
        int is_meant = i == 1;
        SAME(s->at[i].is_waiting, !is_meant && i != 3);
        SAME(s->at[i].deadline_ns == time_ns + 100 * MS, is_meant);
    }
    SAME(s->wakes, 1);
    SAME(s->waiting, 4);
    CHECK(is_ready(1));
    monarch_peer_wake(s, 0, 8);
    SAME(s->waiting, 2); /* connections 0 and 4 no longer wait */
    CHECK(s->at[2].is_waiting && s->at[5].is_waiting);
    for (uint32_t i = 0; i < s->waiting; i++)
        SAME(s->at[s->waits[i]].wait_at, i);
    done();
}

static int is_seven(void *arg, const struct monarch_peer_request *wanted) {
    CHECK(arg == s);
    return wanted->path_hash == 7;
}

/* monarch_peer_wake_if wakes only requests whose files could not be opened yet. A request whose
 * bytes are being sent goes on waiting, even if the condition holds for it. */
TEST(only_requests_that_are_being_opened_are_settled) {
    make(4, 2);
    for (int i = 0; i < 4; i++) {
        SAME(adopt(), i);
        s->at[i].in.request.path_hash = i < 2 ? 7 : 8;
        s->at[i].state = i % 2 ? MONARCH_PEER_FRAMING : MONARCH_PEER_OPENING;
        begin_to_wait(s, &s->at[i]);
    }
    monarch_peer_wake_if(s, is_seven, s);
    for (int i = 0; i < 4; i++)
        SAME(s->at[i].is_waiting, i != 0);
    SAME(s->wakes, 1);
    done();
}

static void wake_once(connection *c) {
    if (steps == 0)
        monarch_peer_wake(s, 3, 3);
}

/* If a wake comes while a thread runs a step, the thread runs another step before it lets the
 * connection wait. */
TEST(a_wake_during_a_step_is_not_missed) {
    for (int is_woken = 0; is_woken < 2; is_woken++) {
        make(2, 2);
        SAME(adopt(), 0);
        s->at[0].is_busy = 1;
        meanwhile = is_woken ? wake_once : NULL;
        returns[0] = returns[1] = MONARCH_PEER_TO_WAIT;
        SAME(work_on(s, &s->at[0], &stage, 0), 0);
        SAME(steps, 1 + is_woken);
        CHECK(s->at[0].is_waiting && !s->at[0].is_busy && s->waiting == 1);
        done();
    }
}

#define ROUNDS 60000

/* begun: the number of the round that runs; negative once the round's call of monarch_peer_wake has
 * returned. arrived: the number of the last round whose bytes have arrived. */
static int begun, arrived;

static void delay(int steps_left) {
    while (steps_left-- > 0)
        __atomic_signal_fence(__ATOMIC_SEQ_CST); /* so that the compiler keeps the loop */
}

static void await(const int *number, int value) {
    while (__atomic_load_n(number, __ATOMIC_SEQ_CST) != value)
        sched_yield();
}

static void *bring_bytes(void *arg) {
    (void)arg;
    for (int round = 1; round <= ROUNDS; round++) {
        await(&begun, round);
        delay(round % 211);
        __atomic_store_n(&arrived, round, __ATOMIC_SEQ_CST);
        monarch_peer_wake(s, 0, 0);
        __atomic_store_n(&begun, -round, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

/* Bytes may arrive at the moment when a connection begins to wait for them. Then one of three
 * things happens: the thread finds the bytes when it looks, the connection is woken, or hand_back
 * tells the thread to look again. */
TEST(a_wake_beside_the_begin_of_a_wait_is_not_missed) {
    pthread_t thread;
    make(1, 1);
    SAME(adopt(), 0);
    connection *c = &s->at[0];
    CHECK(pthread_create(&thread, NULL, bring_bytes, NULL) == 0);
    for (int round = 1; round <= ROUNDS; round++) {
        __atomic_store_n(&begun, round, __ATOMIC_SEQ_CST);
        delay(round % 1999);
        for (int is_over = 0; !is_over;) {
            uint64_t wakes = __atomic_load_n(&s->wakes, __ATOMIC_SEQ_CST);
            is_over = __atomic_load_n(&arrived, __ATOMIC_SEQ_CST) == round ||
                      hand_back(s, c, &stage, MONARCH_PEER_TO_WAIT, wakes);
        }
        await(&begun, -round);
        CHECK(!c->is_waiting && s->waiting == 0);
    }
    pthread_join(thread, NULL);
    done();
}

static void begin_request(connection *c) { c->state = MONARCH_PEER_SENDING; }
static void end_request(connection *c) { c->state = MONARCH_PEER_READING; }

/* A step's result says whether the connection then waits for bytes or for room in its socket. The
 * connection counts as active while it has a request. */
TEST(a_connection_waits_for_what_it_needs) {
    make(2, 2);
    SAME(adopt(), 0);
    connection *c = &s->at[0];
    c->is_busy = 1;
    meanwhile = begin_request;
    returns[0] = MONARCH_PEER_TO_SEND;
    SAME(work_on(s, c, &stage, 0), 0);
    CHECK(s->active == 1 && !c->is_busy && is_ready(0));
    c->is_busy = 1;
    returns[1] = MONARCH_PEER_TO_SEND;
    SAME(work_on(s, c, &stage, 0), 0);
    SAME(s->active, 1);
    SAME(is_ready(0), 1);
    c->is_busy = 1;
    meanwhile = end_request;
    returns[2] = MONARCH_PEER_TO_READ;
    SAME(work_on(s, c, &stage, 0), 0);
    CHECK(s->active == 0 && !is_ready(0));
    SAME(write(ends[0], "x", 1), 1);
    SAME(is_ready(0), 1);
    c->is_busy = 1;
    meanwhile = begin_request;
    returns[3] = MONARCH_PEER_TO_CLOSE;
    int before = open_descriptors();
    SAME(work_on(s, c, &stage, 0), 0);
    CHECK(s->active == 0 && c->fd == -1 && s->open == 0 && s->dropped == 1 && let_go == 1);
    SAME(open_descriptors(), before - 1);
    done();
}

/* A thread stays with a connection, and may block on it, only while the number of active
 * connections is smaller than the number of threads. */
TEST(a_thread_stays_while_there_are_threads_for_others) {
    make(2, 2);
    SAME(adopt(), 0);
    connection *c = &s->at[0];
    begin_request(c);
    for (unsigned active = 1; active < 4; active++)
        for (int stays = 0; stays < 2; stays++) {
            c->is_busy = 1;
            s->active = active;
            steps = 0;
            returns[0] = MONARCH_PEER_TO_YIELD;
            SAME(work_on(s, c, &stage, stays), stays && active < 2);
            SAME(may_block[0], stays && active < 2);
            SAME(c->is_busy, stays && active < 2);
        }
    s->stopping = 1;
    s->active = 1;
    SAME(can_stay(s), 0);
    c->is_busy = 0;
    done();
}

/* A sweep closes the connections whose deadline has passed, with two exceptions. A connection on
 * which a thread works stays open. If a connection waits for bytes of its file, only its wait and
 * its answer end, and it stays open too. Two sweeps are at least half of TICK_MS apart. */
TEST(a_sweep_ends_what_is_late) {
    make(5, 2);
    for (int i = 0; i < 5; i++) {
        SAME(adopt(), i);
        s->at[i].deadline_ns = time_ns + (i == 3);
    }
    begin_to_wait(s, &s->at[1]);
    s->at[2].is_busy = 1;
    s->at[4].state = MONARCH_PEER_SENDING;
    s->active = 1;
    returns[0] = MONARCH_PEER_TO_READ;
    sweep(s, &stage);
    SAME(steps, 1);
    CHECK(s->at[0].fd == -1 && s->at[4].fd == -1 && s->open == 3);
    CHECK(s->at[1].fd >= 0 && !s->at[1].is_waiting && !s->at[1].is_busy && s->waiting == 0);
    CHECK(s->at[2].fd >= 0 && s->at[3].fd >= 0 && s->dropped == 1 && s->active == 0);
    time_ns += TICK_MS * MS / 2 - 1;
    sweep(s, &stage);
    CHECK(s->at[3].fd >= 0);
    time_ns++;
    s->at[1].deadline_ns = time_ns + 1;
    sweep(s, &stage);
    CHECK(s->at[3].fd == -1 && s->at[1].fd >= 0);
    s->at[2].is_busy = 0;
    done();
}

/* The socket of a new connection does not block, and its sends have a time limit. set_options sets
 * the TCP options. */
TEST(options_are_set_for_the_socket) {
    make(1, 1);
    SAME(adopt(), 0);
    CHECK(fcntl(s->at[0].fd, F_GETFL) & O_NONBLOCK);
    struct timeval stay;
    socklen_t n = sizeof stay;
    SAME(getsockopt(s->at[0].fd, SOL_SOCKET, SO_SNDTIMEO, &stay, &n), 0);
    CHECK(stay.tv_sec == 0 && stay.tv_usec >= 1000 * MONARCH_PEER_STAY_MS &&
          stay.tv_usec < 2000 * MONARCH_PEER_STAY_MS);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), value = 0;
    set_options(fd, &s->bounds, 0);
    n = sizeof value;
    SAME(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &n), 0);
    CHECK(value);
    SAME(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &n), 0);
    CHECK(value);
    SAME(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, &n), 0);
    SAME(value, 100);
    SAME(getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &value, &n), 0);
    SAME(value, 30);
    close(fd);
    done();
}
