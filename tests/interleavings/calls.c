/* Replacements for calls of the code under test: the clock, locks, futexes, and the library's
 * system calls. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "futex.h"
#include "scheduler.h"

/* --- the clock ----------------------------------------------------------------------------------
 */

int __wrap_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t) {
    (void)id;
    t->tv_sec = (time_t)(scheduled_ns() / 1000000000);
    t->tv_nsec = (long)(scheduled_ns() % 1000000000);
    return 0;
}

static uint64_t time_of(const struct timespec *t) {
    return (uint64_t)t->tv_sec * 1000000000 + (uint64_t)t->tv_nsec;
}

/* --- locks --------------------------------------------------------------------------------------
 */

static __thread int locks;

int locks_held(void) { return locks; }

static int lock_until(pthread_mutex_t *lock, uint64_t until_ns, const void *at) {
    while (pthread_mutex_trylock(lock) != 0)
        if (!sleep_on(lock, until_ns, ANY_BIT))
            return ETIMEDOUT;
    locks++;
    step_of(at);
    return 0;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock) {
    return lock_until(lock, NEVER, __builtin_return_address(0));
}

int __wrap_pthread_mutex_timedlock(pthread_mutex_t *lock, const struct timespec *until);
int __wrap_pthread_mutex_timedlock(pthread_mutex_t *lock, const struct timespec *until) {
    return lock_until(lock, time_of(until), __builtin_return_address(0));
}

int __real_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock) {
    int r = __real_pthread_mutex_unlock(lock);
    locks--;
    wake(lock, 1, ANY_BIT);
    step_of(__builtin_return_address(0));
    return r;
}

/* --- futexes ------------------------------------------------------------------------------------
 */

static long wait_on(const uint32_t *word, uint32_t seen, uint64_t until_ns, uint32_t bits) {
    if (__atomic_load_n(word, __ATOMIC_SEQ_CST) != seen)
        return -EAGAIN;
    return sleep_on(word, until_ns, bits) ? 0 : -ETIMEDOUT;
}

long scheduled_futex(uint32_t *word, int how, uint32_t value, const struct timespec *limit,
                     uint32_t bits, const void *at) {
    switch (how & FUTEX_CMD_MASK) {
    case FUTEX_WAIT:
        return wait_on(word, value, limit ? scheduled_ns() + time_of(limit) : NEVER, ANY_BIT);
    case FUTEX_WAIT_BITSET:
        return wait_on(word, value, limit ? time_of(limit) : NEVER, bits);
    case FUTEX_WAKE:
        bits = ANY_BIT;
        break;
    case FUTEX_WAKE_BITSET:
        break;
    default:
        wrong("unknown futex operation: %d", how);
    }
    wake(word, (int)value, bits);
    step_of(at);
    return 0;
}

/* --- the library's system calls: in the code under test, sys6 is scheduled_sys6 (building.py) ---
 */

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
        step_waiting();
        return 0;
    case SYS_futex:
        return scheduled_futex((uint32_t *)a, (int)b, (uint32_t)c, (const struct timespec *)d,
                               (uint32_t)f, at);
    case SYS_sendmsg: {
        long sent = plain_sys6(n, a, b, c, d, e, f);
        wake(INCOMING, 1, ANY_BIT);
        step_of(at);
        return sent;
    }
    case SYS_getpid:
    case SYS_gettid:
    case SYS_geteuid:
    case SYS_rt_sigprocmask:
        return plain_sys6(n, a, b, c, d, e, f);
    default:
        break;
    }
    long r = plain_sys6(n, a, b, c, d, e, f);
    step_of(at);
    return r;
}
