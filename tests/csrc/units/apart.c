/* In this unit, a test can make close_range fail, as on kernels before Linux 5.9. It can also make
 * the clock advance by a tenth of a second at each reading. */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "shared/sys.h"

static int lacks_close_range, is_hasty;
static uint64_t tenths;
static long make_call(long number, long a, long b, long c, long d, long e, long f);
static uint64_t now_ns(void);
#define sys6(number, a, b, c, d, e, f) make_call(number, a, b, c, d, e, f)
#define monarch_now_ns() now_ns()
#include "preload/process/apart.c"
#undef sys6
#undef monarch_now_ns
static long make_call(long number, long a, long b, long c, long d, long e, long f) {
    return lacks_close_range && number == SYS_close_range ? -ENOSYS
                                                          : sys6(number, a, b, c, d, e, f);
}
static uint64_t now_ns(void) { return is_hasty ? ++tenths * 100000000 : monarch_now_ns(); }

#include "made.h"

/* path: the file that the thread opens. gate: the number of a descriptor that is open in the
 * process. The other members record what the thread finds. */
struct look {
    const char *path;
    int gate;
    int opened, sees_gate, blocks_signals, is_other_thread;
};
static void look_around(void *data) {
    struct look *l = data;
    struct stat st;
    uint64_t blocked = 0;
    l->opened = sys_openat(AT_FDCWD, l->path, O_RDONLY);
    l->sees_gate = sys_fstat(l->gate, &st) == 0;
    sys6(SYS_rt_sigprocmask, SIG_BLOCK, 0, (long)&blocked, sizeof blocked, 0, 0);
    l->blocks_signals = blocked >> (SIGUSR1 - 1) & 1;
    l->is_other_thread = sys6(SYS_gettid, 0, 0, 0, 0, 0, 0) != sys_getpid();
}
/* Waits until the file, a FIFO, is opened for writing. */
static void hang(void *data) {
    const struct look *l = data;
    sys_close(sys_openat(AT_FDCWD, l->path, O_RDONLY));
}
/* Runs look_around in a thread with its own table of descriptors. Writes to `out` the number of the
 * descriptor that the thread has opened, whether the descriptor `gate` is open in the thread, and
 * whether the thread's signals are blocked. Returns whether the thread has run, -1 if errno has
 * changed, or -2 if the process's main thread has run look_around. */
EXPORT int apart_look(const char *path, int gate, int is_old_kernel, int *out) {
    struct look l = {.path = path, .gate = gate, .is_other_thread = 1};
    lacks_close_range = is_old_kernel;
    errno = 54321;
    int done = monarch_run_apart(look_around, &l, sizeof l);
    lacks_close_range = 0;
    out[0] = l.opened;
    out[1] = l.sees_gate;
    out[2] = l.blocks_signals;
    return errno != 54321 ? -1 : l.is_other_thread ? done : -2;
}
EXPORT int apart_hang(const char *path) {
    struct look l = {.path = path};
    is_hasty = 1;
    int done = monarch_run_apart(hang, &l, sizeof l);
    is_hasty = 0;
    return done;
}
static int no_thread(void) {
    errno = EAGAIN;
    return -1;
}
EXPORT int apart_without_threads(const char *path) {
    struct look l = {.path = path, .opened = -1};
    monarch_real.clone = (void *)no_thread;
    errno = 54321;
    int done = monarch_run_apart(look_around, &l, sizeof l);
    monarch_real.clone = NULL;
    return errno == 54321 && l.opened == -1 ? done : -1;
}
static void fill_all(void *data) { memset(data, 7, MONARCH_APART_BYTES); }
/* Passes `n` bytes of data to a thread, which changes all of them. Returns whether exactly these
 * bytes were copied back, or -1 if no thread has run. */
EXPORT int apart_data(unsigned n) {
    char data[MONARCH_APART_BYTES + 1] = "";
    if (!monarch_run_apart(fill_all, data, n))
        return -1;
    unsigned same = 0;
    while (same < n && data[same] == 7)
        same++;
    return same == n && !data[n];
}
EXPORT unsigned apart_most(void) { return MONARCH_APART_BYTES; }
