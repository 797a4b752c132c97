#include "preload/process/apart.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

#include "preload/process/calls.h"
#include "shared/sys.h"

#define LIMIT_NS 1000000000ULL
#define STACK_BYTES 16384

/* The beginning of the thread's memory. The rest of this memory is the thread's stack. */
struct apart {
    uint32_t runs; /* futex: 1 while the thread runs; the kernel sets it to 0 when the thread has
                    * ended */
    void (*work)(void *data);
    uint64_t data[MONARCH_APART_BYTES / 8];
};

/* The thread's first function. Gives the thread its own table of descriptors, and then runs the
 * work. From Linux 5.9 on, close_range gives the thread an empty table. (Before Linux 6.13, the
 * kernel first copies up to 64 descriptors into it, and then closes these copies.) Before Linux
 * 5.9, unshare gives the thread a copy of the whole table. So the thread then closes its copy of
 * descriptor 0 to get a free number. Neither call changes the process's own table. The process
 * also loses no POSIX lock, because a POSIX lock belongs to the table through which it was
 * taken. */
static int run(void *at) {
    struct apart *a = at;
    if (sys6(SYS_close_range, 0, ~0U, CLOSE_RANGE_UNSHARE, 0, 0, 0) == 0 ||
        (sys6(SYS_unshare, CLONE_FILES, 0, 0, 0, 0, 0) == 0 && sys_close(0) == 0))
        a->work(a->data);
    return 0;
}

/* Starts the thread with all signals blocked. A signal handler must not run in the thread, because
 * the thread has no thread-local memory of its own. */
static int start(struct apart *a) {
    const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
                      CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
    int old_errno = errno;
    uint64_t signals = sys_signals(SIG_BLOCK, ~0ULL);
    a->runs = 1;
    int tid = REAL(clone)(run, (char *)a + STACK_BYTES, flags, a, NULL, NULL, &a->runs);
    sys_signals(SIG_SETMASK, signals);
    errno = old_errno;
    return tid > 0;
}

/* If the thread has not ended within the time limit, its memory is not freed, because the thread
 * still uses it. */
int monarch_run_apart(void (*work)(void *data), void *data, unsigned long n) {
    struct apart *a = n <= MONARCH_APART_BYTES ? sys_new_pages(STACK_BYTES) : NULL;
    if (!a)
        return 0;
    a->work = work;
    memcpy(a->data, data, n);
    uint32_t runs = (uint32_t)start(a);
    int done = (int)runs;
    for (uint64_t begin = monarch_now_ns(); runs && monarch_now_ns() - begin < LIMIT_NS;) {
        sys_futex_wait(&a->runs, 1, 50000000);
        runs = __atomic_load_n(&a->runs, __ATOMIC_ACQUIRE);
    }
    if (runs)
        return 0;
    memcpy(data, a->data, n);
    sys_unmap(a, STACK_BYTES);
    return done;
}
