/* Tests handover/receive.c: how the threads that receive descriptors from readers start, receive
 * and end. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/grant.h"
#include "engine/work.h"
#include "handover/kept.h"

/* The step at which the start of the threads fails. */
static enum { NOTHING, MEMORY, EPOLL, EVENTFD, TABLE, BUFFER, THREAD } fails;
static void *scarce_calloc(size_t n, size_t size) {
    return fails == MEMORY ? NULL : calloc(n, size);
}
static int make_epoll(int flags) { return fails == EPOLL ? -1 : epoll_create1(flags); }
static int make_event(unsigned value, int flags) {
    return fails == EVENTFD ? -1 : eventfd(value, flags);
}
static int make_thread(pthread_t *thread, const pthread_attr_t *a, void *(*run)(void *),
                       void *arg) {
    return fails == THREAD ? EAGAIN : pthread_create(thread, a, run, arg);
}

/* The table of waiting descriptors, and how often each of its functions was called. */
static int tables, ended, joined, freed, table_hangs, unmapped;
static struct kept_table *make_table(struct pool *p) {
    tables += fails != TABLE;
    return fails == TABLE ? NULL : (struct kept_table *)p;
}
static void end_table(struct kept_table *t) { ended++; }
static int join_table(struct kept_table *t, const struct timespec *until) {
    joined++;
    return !table_hangs;
}
static void free_table(struct kept_table *t) { freed++; }
static char *map_buffer(void) { return fails == BUFFER ? NULL : monarch_map_buffer(); }
static void unmap_buffer(char *buffer) {
    __atomic_fetch_add(&unmapped, 1, __ATOMIC_SEQ_CST);
    monarch_unmap_buffer(buffer);
}

/* Each descriptor that comes with a valid message finally reaches do_handed, which closes it. */
static void end_rest(struct pool *p) { (void)p; }
static enum monarch_answer order_handed(struct pool *p, struct monarch_catalog *c, struct handed *h,
                                        struct job **job);
static void do_handed(struct worker *w, struct job *job);
static int lock_any(struct monarch_writer *w);
/* comes: the message that comes while a thread polls, or that wakes the thread; NULL: none. polls,
 * sleeps: how often threads waited for the interval of a poll, and slept until a message came.
 * comes_at: the number of the interval in which the message comes; beyond POLLS: it wakes the
 * thread. timed_waits: how often a thread was the standby. */
static struct monarch_handover *comes;
static int polls, sleeps, comes_at, timed_waits;
static void send_it(void);
static void real_sleep(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}
static int wait_interval(const struct timespec *t, struct timespec *left) {
    if (comes && ++polls == comes_at)
        send_it();
    return comes ? 0 : nanosleep(t, left);
}
static int wait_for_event(int epoll, struct epoll_event *to, int most, int limit_ms) {
    if (comes && limit_ms == -1) {
        sleeps++;
        send_it();
    }
    return epoll_wait(epoll, to, most, limit_ms);
}
static long wait_or_wake(long number, uint32_t *word, int how, uint32_t value,
                         const struct timespec *limit, ...) {
    if (limit)
        __atomic_fetch_add(&timed_waits, 1, __ATOMIC_SEQ_CST);
    return syscall(number, word, how, value, limit, NULL, 0);
}
#define nanosleep wait_interval
#define epoll_wait wait_for_event
#define syscall wait_or_wake
#define calloc scarce_calloc
#define epoll_create1 make_epoll
#define eventfd make_event
#define pthread_create make_thread
#define pthread_setname_np(thread, name) ((void)(name))
#define monarch_new_kept make_table
#define monarch_end_kept end_table
#define monarch_join_kept join_table
#define monarch_free_kept free_table
#define monarch_map_buffer map_buffer
#define monarch_unmap_buffer unmap_buffer
#define monarch_end_rest end_rest
#define monarch_order_handed order_handed
#define monarch_do_handed do_handed
#define monarch_lock_soon lock_any
#include "handover/receive.c"
#undef calloc
#undef syscall

#include "checks.h"

static struct monarch_engine *e;
static struct pool *p;
static struct monarch_writer *w;
static int sockets[2], readers[2], before;

static int lock_any(struct monarch_writer *of) { return pthread_mutex_lock(&of->lock) == 0; }

static enum monarch_answer order_handed(struct pool *of, struct monarch_catalog *c,
                                        struct handed *h, struct job **job) {
    *job = calloc(1, sizeof **job + 1);
    return MONARCH_TAKEN;
}

/* begun: the number of fills that have begun; changed under `lock`. may_end: the number of fills
 * that may end. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int begun, may_end;
static void do_handed(struct worker *of, struct job *job) {
    CHECK(of->pool == p && of->buffer && of->origin == MONARCH_FROM_SOURCE && of->peer == -1);
    close(job->handed);
    pthread_mutex_lock(&lock);
    int number = begun++;
    pthread_cond_broadcast(&changed);
    while (number >= may_end)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    pthread_mutex_lock(&p->lock);
    p->slot[p->free_slots++] = job->slot;
    pthread_mutex_unlock(&p->lock);
    free(job);
}

static void wait_until_begun(int n) {
    pthread_mutex_lock(&lock);
    while (begun < n)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void let_end(int n) {
    pthread_mutex_lock(&lock);
    may_end = n;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void make(void) {
    before = open_descriptors();
    fails = NOTHING;
    begun = may_end = tables = ended = joined = freed = table_hangs = unmapped = 0;
    e = make_engine(4096);
    p = calloc(1, sizeof *p);
    w = monarch_writer_new();
    p->shared = *e;
    p->shared.writer = w;
    p->free_slots = MONARCH_FILL_SLOTS;
    pthread_mutex_init(&p->lock, NULL);
    for (int i = 0; i < 2; i++) {
        int two[2];
        CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, two) == 0);
        sockets[i] = two[0];
        readers[i] = two[1];
    }
}

static void done(void) {
    for (int i = 0; i < 2; i++) {
        close(sockets[i]);
        close(readers[i]);
    }
    monarch_writer_free(w);
    free(p);
    free_engine(e);
    SAME(open_descriptors(), before);
}

/* Ends the threads and frees everything, as the engine does when it stops. */
static void stop(void) {
    struct timespec until = monarch_join_limit(20000);
    __atomic_store_n(&p->shared.stopping, 1, __ATOMIC_SEQ_CST);
    p->listener->ends(p);
    SAME(p->listener->joins(p, &until), 0);
    p->listener->frees(p);
    CHECK(!p->listener && !p->kept && !p->handovers);
    CHECK(ended == 1 && joined == 1 && freed == 1);
}

/* Sends a message of `bytes` bytes with `n` descriptors of the same file. */
static void say(int reader, const void *what, size_t bytes, int n) {
    struct iovec part = {(void *)what, bytes};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(3 * sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (n) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE((size_t)n * sizeof fd);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN((size_t)n * sizeof fd);
        for (int i = 0; i < n; i++)
            memcpy(CMSG_DATA(&control.header) + i * (int)sizeof fd, &fd, sizeof fd);
    }
    SAME(sendmsg(readers[reader], &message, 0), bytes);
    close(fd);
}

#define SHORT offsetof(struct monarch_handover, source)

static void send_it(void) { say(0, comes, SHORT, 0); }

/* Hands over a descriptor of the file with this entry. */
static void hand_over(int reader, uint64_t id) {
    struct monarch_handover what = {.id = id, .is_read = 1};
    e->clients->claim[id % MONARCH_CLAIMS] =
        monarch_claim_of(id, MONARCH_CLAIM_HANDED, monarch_now_ns());
    say(reader, &what, SHORT, 1);
}

/* --- start and end ---------------------------------------------------------------------------- */

/* Descriptors are received from every socket. All threads end at once when the engine stops,
 * even if no further descriptor comes. */
TEST(descriptors_are_received_until_the_engine_stops) {
    make();
    SAME(monarch_engine_handovers(&p->shared, sockets, 2), 0);
    CHECK(p->handovers && p->handovers->threads == 1 && tables == 1);
    CHECK(p->listener->made == monarch_note_kept && p->listener->begins == monarch_take_kept &&
          p->listener->granted == monarch_look_at_kept);
    let_end(8);
    for (int i = 0; i < 8; i++) {
        hand_over(i % 2, (uint64_t)i);
        wait_until_begun(i + 1);
    }
    int threads = p->handovers->threads;
    CHECK(threads >= 1 && threads <= 8);
    stop();
    CHECK(unmapped >= threads && p->free_slots == MONARCH_FILL_SLOTS);
    done();
}

/* When all threads have work, another thread is started, which waits for the next descriptor. Once
 * THREADS threads have work, further descriptors wait in their socket. */
TEST(a_thread_is_free_for_the_next_descriptor) {
    make();
    SAME(monarch_engine_handovers(&p->shared, sockets, 1), 0);
    for (int i = 0; i < THREADS + 4; i++) {
        hand_over(0, (uint64_t)i);
        wait_until_begun(i < THREADS ? i + 1 : THREADS);
    }
    struct handovers *h = p->handovers;
    pthread_mutex_lock(&h->lock);
    CHECK(h->threads == THREADS && h->waiting == 0);
    pthread_mutex_unlock(&h->lock);
    SAME(begun, THREADS);
    let_end(THREADS + 4);
    wait_until_begun(THREADS + 4);
    stop();
    SAME(unmapped, THREADS);
    done();
}

/* If there is no socket, memory, table or thread, nobody can hand over descriptors, and nothing is
 * left open. A table that was made stays until the engine stops. */
TEST(a_failed_start_leaves_nothing) {
    for (int step = MEMORY; step <= THREAD + 1; step++) {
        make();
        fails = step <= THREAD ? step : NOTHING;
        int none[] = {sockets[0], -1};
        SAME(monarch_engine_handovers(&p->shared, step <= THREAD ? sockets : none, 2), -1);
        CHECK(!p->handovers);
        SAME(p->kept != NULL, step == BUFFER || step == THREAD);
        SAME(p->listener != NULL, p->kept != NULL);
        if (p->listener)
            stop();
        SAME(unmapped, step == THREAD);
        done();
    }
}

/* If no further thread can be started, the existing threads go on. The start is tried again when
 * the next thread is needed. */
TEST(threads_go_on_if_no_more_can_be_started) {
    make();
    SAME(monarch_engine_handovers(&p->shared, sockets, 2), 0);
    fails = THREAD;
    hand_over(0, 1);
    wait_until_begun(1);
    let_end(1);
    hand_over(0, 2);
    wait_until_begun(2);
    CHECK(p->handovers->threads == 1);
    fails = NOTHING;
    let_end(3);
    hand_over(0, 3);
    wait_until_begun(3);
    stop();
    done();
}

/* The join of the listener's threads returns the number of threads that hang. It counts the threads
 * that hang in a call on a file system, and also the table's thread if that thread does not end. */
TEST(threads_that_hang_are_counted) {
    make();
    SAME(monarch_engine_handovers(&p->shared, sockets, 2), 0);
    hand_over(0, 1);
    wait_until_begun(1);
    pthread_t hangs = p->handovers->taker[0].worker.thread;
    __atomic_store_n(&p->shared.stopping, 1, __ATOMIC_SEQ_CST);
    table_hangs = 1;
    p->listener->ends(p);
    for (int i = 1; i < p->handovers->threads; i++)
        pthread_join(p->handovers->taker[i].worker.thread, NULL);
    p->handovers->threads = 1;
    struct timespec until = monarch_join_limit(0);
    SAME(p->listener->joins(p, &until), 2);
    let_end(1);
    pthread_join(hangs, NULL);
    p->listener->frees(p);
    done();
}

/* --- messages --------------------------------------------------------------------------------- */

static struct handovers here;
static void watch_here(void) {
    here = (struct handovers){.pool = p, .epoll = epoll_create1(EPOLL_CLOEXEC)};
    here.end = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    CHECK(watch_all(&here, sockets, 2));
}

static void unwatch(void) {
    close(here.epoll);
    close(here.end);
}

/* A message that names no file is dropped, and its descriptor is closed. A message without a
 * descriptor still requests the file that it names. At most one descriptor of a message is
 * received, so that a faulty program cannot fill the daemon's table of descriptors. */
TEST(a_message_brings_at_most_one_descriptor) {
    make();
    watch_here();
    for (int n = 0; n < 4; n++)
        for (int is_right = 0; is_right < 2; is_right++) {
            struct monarch_handover got, what = {.id = is_right ? 7 : MONARCH_MAX_FILES};
            int fd = 99, open_before = open_descriptors();
            say(n % 2, &what, SHORT, n);
            SAME(receive(&here, &got, &fd), is_right);
            SAME(open_descriptors(), open_before + (is_right && n));
            if (is_right) {
                SAME(got.id, 7);
                SAME(fd >= 0, n > 0);
            }
            if (is_right && n) {
                CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
                close(fd);
            }
        }
    int fd, open_before = open_descriptors();
    struct monarch_handover got;
    say(0, &got, 0, 1); /* an empty message */
    SAME(receive(&here, &got, &fd), 0);
    SAME(open_descriptors(), open_before);
    unwatch();
    done();
}

/* While messages come often, the receiving thread polls, and no message wakes it. After POLLS
 * intervals without a message, it sleeps until a message wakes it. After a message that came late,
 * it does not poll. */
TEST(a_thread_polls_while_messages_come_often) {
    make();
    watch_here();
    struct monarch_handover got, what = {.id = 7};
    int fd = 99;
    comes = &what;
    for (int at = 0; at <= POLLS + 1; at++) {
        polls = sleeps = 0;
        comes_at = at;
        here.is_often = 1;
        here.last_ns = monarch_now_ns();
        if (at == 0)
            say(0, &what, SHORT, 0);
        SAME(receive(&here, &got, &fd), 1);
        SAME(polls, at <= POLLS ? at : POLLS);
        SAME(sleeps, at > POLLS);
        SAME(here.is_asleep, 0);
    }
    comes_at = POLLS + 1;
    polls = sleeps = here.is_often = 0;
    SAME(receive(&here, &got, &fd), 1);
    CHECK(polls == 0 && sleeps == 1 && here.is_often);
    here.last_ns -= 2 * OFTEN_NS;
    SAME(receive(&here, &got, &fd), 1);
    SAME(here.is_often, 0);
    comes = NULL;
    eventfd_write(here.end, 1);
    SAME(receive(&here, &got, &fd), 0);
    unwatch();
    done();
}

static int is_quiet(struct handovers *h) {
    pthread_mutex_lock(&h->lock);
    int is_so = !h->has_standby && h->waiting == h->threads - 1 &&
                __atomic_load_n(&h->is_asleep, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&h->lock);
    return is_so;
}

/* While a thread copies a file, another one receives: the standby, which looks by itself, or a
 * thread that is woken. Once no more messages come, all threads sleep, and none looks by itself. */
TEST(a_thread_takes_over_and_all_sleep_at_the_end) {
    make();
    SAME(monarch_engine_handovers(&p->shared, sockets, 2), 0);
    struct handovers *h = p->handovers;
    for (int i = 0; i < 4; i++) { /* each first copy is held up until the second one has begun */
        hand_over(0, (uint64_t)(2 * i));
        wait_until_begun(2 * i + 1);
        hand_over(1, (uint64_t)(2 * i + 1));
        wait_until_begun(2 * i + 2);
        let_end(2 * i + 2);
    }
    while (!is_quiet(h))
        real_sleep(1);
    CHECK(h->threads >= 3 && h->threads <= 8);
    int before_waits = __atomic_load_n(&timed_waits, __ATOMIC_SEQ_CST);
    real_sleep(5 * STANDBY_NS / 1000000);
    SAME(__atomic_load_n(&timed_waits, __ATOMIC_SEQ_CST), before_waits);
    stop();
    done();
}
