/* Many reads in flight at once. A process has one set of threads, which sleep between calls. They
 * are started when a call first needs them, and a forked child starts its own. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "loaders/loaders.h"
#include "shared/clock.h"

/* A thread only reads; the library that may be preloaded needs some room as well. */
#define STACK_BYTES (256 << 10)

/* A read that takes longer than this and a nanosecond for each byte has waited for a disk or a
 * network [ns]. Reads of files in memory take a tenth of it. */
#define SLOW_NS 100000

/* One call of monarch_read_all. It lies on the stack of its caller, who leaves when no thread is at
 * it any more. */
struct call {
    const int32_t *descriptors;
    const int64_t *offsets, *lengths;
    char *const *out;
    uint64_t n, next; /* next: the first read that nobody has begun; atomic */
    uint64_t slow;    /* how many reads had to wait; atomic */
    /* Under the lock: */
    uint64_t failed; /* the first read that failed; `n` if none has */
    int error;       /* its errno */
    int wanted;      /* how many threads may still join */
    int at_work;     /* how many threads are at it, without the caller's */
    struct call *after;
    pthread_cond_t left;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static struct call *calls; /* those that want threads, the newest first */
static int threads, idle;  /* idle: those at no call */
/* Whether few reads of the last call had to wait; atomic. Then a call begins without threads: to
 * wake them costs more than to copy from memory. */
static int was_fast;

/* In a forked child only the thread that forked goes on: no thread holds the lock, and none reads.
 */
static void forget(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    more = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    calls = NULL;
    threads = idle = 0;
}

/* When this code is loaded, and not later: a fork that has begun would not heed it any more. */
__attribute__((constructor)) static void heed_forks(void) { pthread_atfork(NULL, NULL, forget); }

/* Returns 0, an errno, or -1 if the file ends too early. */
static int read_one(int fd, char *to, int64_t length, int64_t offset) {
    while (length > 0) {
        ssize_t got = pread(fd, to, (size_t)length, offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return errno;
        if (got == 0)
            return -1;
        to += got;
        offset += got;
        length -= got;
    }
    return 0;
}

static void fail(struct call *c, uint64_t i, int error) {
    /* Reads begin in order, so whoever fails first in this order has begun. */
    __atomic_store_n(&c->next, c->n, __ATOMIC_RELAXED);
    pthread_mutex_lock(&lock);
    if (i < c->failed) {
        c->failed = i;
        c->error = error < 0 ? 0 : error;
    }
    pthread_mutex_unlock(&lock);
}

/* Makes reads until none is left or, if `is_alone`, until one had to wait. */
static void work(struct call *c, int is_alone) {
    for (;;) {
        uint64_t i = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED);
        if (i >= c->n)
            return;
        uint64_t begin = monarch_now_ns();
        int error = read_one(c->descriptors[i], c->out[i], c->lengths[i], c->offsets[i]);
        if (error)
            fail(c, i, error);
        if (monarch_now_ns() - begin <= SLOW_NS + (uint64_t)c->lengths[i])
            continue;
        __atomic_fetch_add(&c->slow, 1, __ATOMIC_RELAXED);
        if (is_alone)
            return;
    }
}

static void unlink_call(struct call *c) {
    for (struct call **at = &calls; *at; at = &(*at)->after)
        if (*at == c) {
            *at = c->after;
            return;
        }
}

static void *read_thread(void *arg) {
    (void)arg;
    pthread_setname_np(pthread_self(), "monarch-read");
    pthread_mutex_lock(&lock);
    for (;; idle++) {
        while (!calls)
            pthread_cond_wait(&more, &lock);
        idle--;
        struct call *c = calls;
        if (--c->wanted == 0)
            unlink_call(c);
        c->at_work++;
        pthread_mutex_unlock(&lock);
        work(c, 0);
        pthread_mutex_lock(&lock);
        if (--c->at_work == 0)
            pthread_cond_signal(&c->left);
    }
    return NULL;
}

/* The program's signals are not for these threads. */
static void start_threads(int missing) {
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, before;
    if (missing <= 0 || pthread_attr_init(&attr) != 0)
        return;
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; missing > 0 && threads < MONARCH_READS_IN_FLIGHT; missing--) {
        if (pthread_create(&thread, &attr, read_thread, NULL) != 0)
            break; /* those that run, or the caller alone, do the work */
        threads++;
        idle++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
}

static void ask_for_threads(struct call *c) {
    pthread_mutex_lock(&lock);
    c->after = calls;
    calls = c;
    int all = 0;
    for (struct call *each = calls; each; each = each->after)
        all += each->wanted;
    start_threads(all - idle);
    for (int i = 0; i < c->wanted; i++)
        pthread_cond_signal(&more);
    pthread_mutex_unlock(&lock);
}

static void wait_for_threads(struct call *c) {
    pthread_mutex_lock(&lock);
    unlink_call(c);
    while (c->at_work)
        pthread_cond_wait(&c->left, &lock);
    pthread_mutex_unlock(&lock);
}

uint64_t monarch_read_all(const int32_t *descriptors, const int64_t *offsets,
                          const int64_t *lengths, char *const *out, uint64_t n, int in_flight,
                          int *error) {
    int width = in_flight < MONARCH_READS_IN_FLIGHT ? in_flight : MONARCH_READS_IN_FLIGHT;
    struct call c = {
        .descriptors = descriptors,
        .offsets = offsets,
        .lengths = lengths,
        .out = out,
        .n = n,
        .failed = n,
        .wanted = (n < (uint64_t)width ? (int)n : width) - 1,
        .left = PTHREAD_COND_INITIALIZER,
    };
    int is_shared = 0;
    if (c.wanted > 0 && __atomic_load_n(&was_fast, __ATOMIC_RELAXED))
        work(&c, 1);
    if (c.wanted > 0 && __atomic_load_n(&c.next, __ATOMIC_RELAXED) < n) {
        ask_for_threads(&c);
        is_shared = 1;
    }
    work(&c, 0);
    if (is_shared)
        wait_for_threads(&c);
    __atomic_store_n(&was_fast, c.slow * 4 < n, __ATOMIC_RELAXED);
    *error = c.error;
    return c.failed;
}
