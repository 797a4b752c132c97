#include "scheduler.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_THREADS 4
/* A thread that has made so many steps never ends. */
#define MOST_STEPS 60000
#define MOST_CHOICES 4096
#define MOST_IGNORED 8
/* Of the clock: what a step takes, and a wait [ns]. */
#define STEP_NS 1000
#define WAIT_NS 10000000
#define BEGIN_NS 1000000000000ULL

enum state { READY, WAITING, DONE };

static struct {
    enum state state;
    sem_t turn;
    pthread_t id;
} threads[MOST_THREADS];
static unsigned count;
static sem_t over;
static __thread int me = -1; /* the number of the thread; -1: it is not scheduled */

struct choice {
    uint8_t taken, options;
};

/* The decisions of a run: those of the run before it but for the last of them that had another
 * option, then the first option each time. Shared with the processes that run. */
static struct decisions {
    struct choice choice[MOST_CHOICES];
    unsigned known, made;
} * decisions;
static unsigned interrupts, most_interrupts;

/* For who reads about a failure: who was interrupted, where, and who went on. */
static struct {
    int from, to;
    const void *at;
    unsigned step;
} switches[MOST_CHOICES];
static unsigned switched, steps;
static const struct trial *running;
static uint64_t runs, clock_ns;

static struct { const char *begin, *end; } ignored[MOST_IGNORED];
static unsigned ignored_count;

void ignore_memory(const void *at, size_t n) {
    ignored[ignored_count].begin = at;
    ignored[ignored_count++].end = (const char *)at + n;
}

static int is_ignored(const volatile void *at) {
    for (unsigned i = 0; i < ignored_count; i++)
        if ((const char *)at >= ignored[i].begin && (const char *)at < ignored[i].end)
            return 1;
    return 0;
}

void wrong(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s, run %llu: ", running ? running->name : "none", (unsigned long long)runs);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    for (unsigned i = 0; i < switched; i++)
        fprintf(stderr, "  step %u: thread %d at (%s+%p), then thread %d\n", switches[i].step,
                switches[i].from, program_invocation_short_name, switches[i].at, switches[i].to);
    _exit(1);
}

/* --- decisions -----------------------------------------------------------------------------------
 */

static unsigned choose(unsigned options) {
    struct decisions *d = decisions;
    if (options < 2)
        return 0;
    if (d->made == MOST_CHOICES)
        wrong("too many decisions");
    struct choice *c = &d->choice[d->made++];
    if (d->made > d->known)
        *c = (struct choice){0, (uint8_t)options};
    else if (c->options != options)
        wrong("the same order has led elsewhere: what the trial begins with was not the same");
    return c->taken;
}

/* Whether there is an order that was not tried. */
static int next_order(void) {
    struct decisions *d = decisions;
    d->known = d->made;
    while (d->known && d->choice[d->known - 1].taken + 1 >= d->choice[d->known - 1].options)
        d->known--;
    if (d->known)
        d->choice[d->known - 1].taken++;
    return d->known != 0;
}

/* In *options, from the nth on, the threads of this state, in turn behind thread `from`; how many
 * there are then. */
static unsigned add_threads(int from, enum state state, int *options, unsigned n) {
    for (int i = 0; i < (int)count; i++) {
        int other = (from + 1 + i) % (int)count;
        if (other != from && threads[other].state == state)
            options[n++] = other;
    }
    return n;
}

/* The thread that makes the next step after one of thread `from`, -1 at the start: the same thread;
 * if it waits, the next one that does not; if all wait, the next one, for which time has passed.
 * Another choice is an interrupt. */
static int successor(int from) {
    int options[MOST_THREADS];
    unsigned n = 0, can_go_on = from >= 0 && threads[from].state == READY;
    if (can_go_on)
        options[n++] = from;
    n = add_threads(from, READY, options, n);
    n = add_threads(from, WAITING, options, n);
    if (from >= 0 && threads[from].state == WAITING)
        options[n++] = from;
    if (!n)
        return -1;
    unsigned chosen = choose(from < 0 || interrupts < most_interrupts ? n : 1);
    interrupts += from >= 0 && chosen;
    return options[chosen];
}

static void wake_all(int but) {
    for (int i = 0; i < (int)count; i++)
        if (i != but && threads[i].state == WAITING)
            threads[i].state = READY;
}

static void go_on(int from, const void *at) {
    int to = successor(from);
    if (to == from) {
        threads[from].state = READY;
        return;
    }
    if (to >= 0 && switched < MOST_CHOICES) {
        switches[switched].from = from;
        switches[switched].to = to;
        switches[switched].step = steps;
        switches[switched++].at = at;
    }
    int is_done = from >= 0 && threads[from].state == DONE;
    if (to >= 0)
        threads[to].state = READY;
    sem_post(to < 0 ? &over : &threads[to].turn);
    if (from >= 0 && !is_done)
        sem_wait(&threads[from].turn);
}

static void take_step(enum state state, const void *at) {
    clock_ns += state == WAITING ? WAIT_NS : STEP_NS;
    if (me < 0)
        return;
    int old_errno = errno;
    if (++steps > MOST_STEPS)
        wrong("does not end");
    threads[me].state = state;
    if (state == READY)
        wake_all(me);
    go_on(me, at);
    errno = old_errno;
}

void step(void) { take_step(READY, __builtin_return_address(0)); }
void step_waiting(void) { take_step(WAITING, __builtin_return_address(0)); }

/* --- runs ----------------------------------------------------------------------------------------
 */

static void *run_thread(void *number) {
    int my_number = (int)(intptr_t)number;
    sem_wait(&threads[my_number].turn);
    me = my_number;
    running->thread[me]();
    threads[me].state = DONE;
    wake_all(me);
    go_on(my_number, NULL);
    return NULL;
}

static void run_here(void) {
    clock_ns = BEGIN_NS;
    running->reset();
    for (count = 0; count < MOST_THREADS && running->thread[count]; count++) {
        threads[count].state = READY;
        sem_init(&threads[count].turn, 0, 0);
    }
    for (unsigned i = 0; i < count; i++)
        if (pthread_create(&threads[i].id, NULL, run_thread, (void *)(intptr_t)i) != 0)
            wrong("no thread");
    go_on(-1, NULL);
    sem_wait(&over);
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i].id, NULL);
    running->check();
}

/* In a process of its own, which finds the library's memory as it was before any run. */
static void run_once(void) {
    int status = 1;
    runs++;
    decisions->made = 0;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_here();
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        wrong("no process");
    if (status == 0 && decisions->made < decisions->known)
        wrong("the same order has ended earlier: what the trial begins with was not the same");
    if (status != 0)
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

uint64_t explore(const struct trial *trial, unsigned bound, uint64_t most) {
    running = trial;
    sem_init(&over, 0, 0);
    decisions =
        mmap(NULL, sizeof *decisions, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (decisions == MAP_FAILED)
        wrong("no memory");
    for (most_interrupts = 0; most_interrupts <= bound; most_interrupts++) {
        decisions->known = 0;
        do
            run_once();
        while (next_order() && runs < most);
    }
    return runs;
}

/* --- what the code under test calls
 * ---------------------------------------------------------------
 */

int __real_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t) {
    if (id != CLOCK_MONOTONIC && id != CLOCK_MONOTONIC_COARSE)
        return __real_clock_gettime(id, t);
    t->tv_sec = (time_t)(clock_ns / 1000000000);
    t->tv_nsec = (long)(clock_ns % 1000000000);
    return 0;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock) {
    while (pthread_mutex_trylock(lock) != 0)
        take_step(WAITING, __builtin_return_address(0));
    take_step(READY, __builtin_return_address(0));
    return 0;
}

int __real_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock) {
    int r = __real_pthread_mutex_unlock(lock);
    take_step(READY, __builtin_return_address(0));
    return r;
}

/* sys6 of csrc/shared/sys.h is this. What waits lets others go on instead. */
static long plain_sys6(long n, long a, long b, long c, long d, long e, long f) {
    int old_errno = errno;
    long r = syscall(n, a, b, c, d, e, f);
    r = r < 0 ? -errno : r;
    errno = old_errno;
    return r;
}

long scheduled_sys6(long n, long a, long b, long c, long d, long e, long f);
long scheduled_sys6(long n, long a, long b, long c, long d, long e, long f) {
    const void *at = __builtin_return_address(0);
    switch (n) {
    case SYS_sched_yield:
    case SYS_nanosleep:
        take_step(WAITING, at);
        return 0;
    case SYS_futex:
        if ((b & FUTEX_CMD_MASK) == FUTEX_WAIT) {
            if (__atomic_load_n((uint32_t *)a, __ATOMIC_SEQ_CST) == (uint32_t)c)
                take_step(WAITING, at);
            return 0;
        }
        break;
    case SYS_getpid:
    case SYS_gettid:
    case SYS_geteuid:
    case SYS_rt_sigprocmask:
        return plain_sys6(n, a, b, c, d, e, f);
    default:
        break;
    }
    long r = plain_sys6(n, a, b, c, d, e, f);
    take_step(READY, at);
    return r;
}

#define ACCESSED(at)                                       \
    do {                                                   \
        if (me >= 0 && !is_ignored(at))                    \
            take_step(READY, __builtin_return_address(0)); \
    } while (0)

#define FETCH(T, bits, name)                                               \
    T __tsan_atomic##bits##_fetch_##name(volatile T *at, T v, int order);  \
    T __tsan_atomic##bits##_fetch_##name(volatile T *at, T v, int order) { \
        (void)order;                                                       \
        T old = __atomic_fetch_##name(at, v, __ATOMIC_SEQ_CST);            \
        ACCESSED(at);                                                      \
        return old;                                                        \
    }
#define ATOMICS(T, bits)                                                                       \
    T __tsan_atomic##bits##_load(const volatile T *at, int order);                             \
    T __tsan_atomic##bits##_load(const volatile T *at, int order) {                            \
        (void)order;                                                                           \
        T v = __atomic_load_n(at, __ATOMIC_SEQ_CST);                                           \
        ACCESSED(at);                                                                          \
        return v;                                                                              \
    }                                                                                          \
    void __tsan_atomic##bits##_store(volatile T *at, T v, int order);                          \
    void __tsan_atomic##bits##_store(volatile T *at, T v, int order) {                         \
        (void)order;                                                                           \
        __atomic_store_n(at, v, __ATOMIC_SEQ_CST);                                             \
        ACCESSED(at);                                                                          \
    }                                                                                          \
    T __tsan_atomic##bits##_exchange(volatile T *at, T v, int order);                          \
    T __tsan_atomic##bits##_exchange(volatile T *at, T v, int order) {                         \
        (void)order;                                                                           \
        T old = __atomic_exchange_n(at, v, __ATOMIC_SEQ_CST);                                  \
        ACCESSED(at);                                                                          \
        return old;                                                                            \
    }                                                                                          \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile T *at, T *seen, T v, int order, \
                                                      int other);                              \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile T *at, T *seen, T v, int order, \
                                                      int other) {                             \
        (void)order, (void)other;                                                              \
        int is_done =                                                                          \
            __atomic_compare_exchange_n(at, seen, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);   \
        ACCESSED(at);                                                                          \
        return is_done;                                                                        \
    }                                                                                          \
    FETCH(T, bits, add)                                                                        \
    FETCH(T, bits, sub)                                                                        \
    FETCH(T, bits, and)                                                                        \
    FETCH(T, bits, or)                                                                         \
    FETCH(T, bits, xor)

ATOMICS(uint8_t, 8)
ATOMICS(uint16_t, 16)
ATOMICS(uint32_t, 32)
ATOMICS(uint64_t, 64)

/* Plain accesses are no steps: two threads never make them to the same place at once, which
 * ThreadSanitizer itself sees to in other tests. */
#define PLAIN(name)               \
    void __tsan_##name(void *at); \
    void __tsan_##name(void *at) { (void)at; }
#define PLAIN_OF(bytes) \
    PLAIN(read##bytes)  \
    PLAIN(write##bytes) PLAIN(unaligned_read##bytes) PLAIN(unaligned_write##bytes)
PLAIN_OF(1)
PLAIN_OF(2)
PLAIN_OF(4)
PLAIN_OF(8)
PLAIN_OF(16)
PLAIN(func_entry)

void __tsan_init(void);
void __tsan_init(void) {}
void __tsan_func_exit(void);
void __tsan_func_exit(void) {}
void __tsan_read_range(void *at, size_t n);
void __tsan_read_range(void *at, size_t n) { (void)at, (void)n; }
void __tsan_write_range(void *at, size_t n);
void __tsan_write_range(void *at, size_t n) { (void)at, (void)n; }
void __tsan_atomic_thread_fence(int order);
void __tsan_atomic_thread_fence(int order) { (void)order; }
