/* Makes many reads at a time, in several threads. A process starts the threads when a call first
 * needs them. Between calls, the threads sleep. A forked child starts threads of its own. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "loaders/loaders.h"
#include "shared/clock.h"

/* Size of a thread's stack. Reading needs little of it, but a preloaded library may need more. */
#define STACK_BYTES (256 << 10)

/* A read is slow if it took longer than SLOW_NS [ns] plus 1 ns per byte, and its thread slept
 * during the read to wait for a disk or the network. A read from memory takes about a tenth of
 * this limit. If the thread only waits for a processor, it does not sleep, and the read is not
 * slow. */
#define SLOW_NS 100000

/* A running call of monarch_read_all. The structure is on the stack of monarch_read_all. So
 * monarch_read_all returns only after all other threads have stopped working on the call. */
struct call {
    const int32_t *descriptors;
    const int64_t *offsets, *lengths;
    char *const *out;
    uint64_t n, next; /* next: index of the first read that no thread has begun; atomic */
    uint64_t slow;    /* number of slow reads; atomic */
    /* The lock protects the following fields. */
    uint64_t failed; /* smallest index of a read that failed; `n` if no read has failed */
    int error;       /* the errno of the read with index `failed` */
    int wanted;      /* number of further threads that may begin to work on this call */
    int at_work;     /* number of threads that work on this call, not counting the caller's */
    struct call *after;
    pthread_cond_t left;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static struct call *calls; /* list of the calls that still need threads; the newest call is the
                            * first */
static int threads, idle;  /* idle: number of threads that work on no call */
/* Atomic. 1: few reads of the last call were slow. The next call then begins without waking other
 * threads, because waking threads takes longer than copying a file's bytes from memory. */
static int was_fast;

/* Resets the state in a forked child. Only the thread that called fork exists in the child, so no
 * thread holds the lock or makes reads. */
static void forget(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    more = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    calls = NULL;
    threads = idle = 0;
}

/* Registers `forget` when this library is loaded. If the first call of monarch_read_all registered
 * it, another thread could fork before the registration, during that call. The child would then
 * not run `forget`. */
__attribute__((constructor)) static void heed_forks(void) { pthread_atfork(NULL, NULL, forget); }

/* Reads one range completely. Returns 0, an errno, or -1 if the file ends too early. */
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
    /* From now on, no further read begins. Reads begin in the order of their indexes, so all reads
     * before read `i` have begun already. If one of them fails too, its failure replaces the
     * failure of read `i`. */
    __atomic_store_n(&c->next, c->n, __ATOMIC_RELAXED);
    pthread_mutex_lock(&lock);
    if (i < c->failed) {
        c->failed = i;
        c->error = error < 0 ? 0 : error;
    }
    pthread_mutex_unlock(&lock);
}

/* Returns how many times this thread has slept. */
static long sleeps(void) {
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nvcsw : 0;
}

/* Makes reads of the call, one after another, until no read is left to begin. If `is_alone` is 1,
 * returns after a slow read too, so that the caller can wake other threads. */
static void work(struct call *c, int is_alone) {
    for (long slept = sleeps(), before = slept;; before = slept) {
        uint64_t i = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED);
        if (i >= c->n)
            return;
        uint64_t begin = monarch_now_ns();
        int error = read_one(c->descriptors[i], c->out[i], c->lengths[i], c->offsets[i]);
        if (error)
            fail(c, i, error);
        if (monarch_now_ns() - begin <= SLOW_NS + (uint64_t)c->lengths[i])
            continue;
        slept = sleeps();
        if (slept == before)
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

/* Starts `missing` threads, or fewer. They block all signals, so that the program's own threads
 * handle the signals. */
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
            break; /* no error, because fewer threads, or the caller alone, can make the reads */
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
