#include "preload/autostart/launch.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "shared/sys.h"

/* monarch_launch makes an intermediate process. That process makes a second process, and then ends.
 * The second process becomes the launched program.
 *
 * Both new processes share this process's memory, because it takes long to copy the page tables of
 * a large process. Each new process has its own stack. A function that runs in a new process must
 * not touch errno or any other thread-local variable, because these variables belong to this
 * process. A sanitizer would add code that touches them. The attribute BESIDE turns the sanitizer
 * off for a function. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define BESIDE __attribute__((no_sanitize("thread", "address")))
#else
#define BESIDE
#endif

/* How long [ns] monarch_launch waits for the end of the intermediate process. */
#define BETWEEN_NS 50000000ULL
/* How long [ns] monarch_launch waits for the start of the program, after the intermediate process
 * has ended. If the program has not started by then, the second process still uses this process's
 * memory. That is safe even if this process ends, because the kernel keeps the memory as long as
 * any process uses it. */
#define START_NS 2000000ULL
/* Size of the intermediate process's stack [bytes]. */
#define BETWEEN_STACK 4096

typedef int (*work)(struct monarch_launch *l);

/* Runs `run` in a new process that shares this process's memory and table of descriptors. Returns
 * the new process's pid, or a negative error number. The kernel stores the pid in *runs before the
 * new process begins. The kernel sets *runs to 0 when the new process has ended or has executed a
 * program. Only the kernel writes *runs, so its value is correct even if one of the processes is
 * killed.
 *
 * CLONE_VFORK is not used, because it would make this process wait without a time limit. The new
 * process has no exit signal, so wait() does not report it. CLONE_UNTRACED hides the new process
 * from a tracer that follows children. libc's clone is not used: before glibc 2.25, it changed the
 * pid that libc caches in this process. */
static long run_beside(work run, struct monarch_launch *l, void *stack, uint32_t *runs) {
    const long flags =
        CLONE_VM | CLONE_FILES | CLONE_UNTRACED | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
#if defined(__x86_64__)
    long r;
    register long r10 __asm__("r10") = (long)runs, r8 __asm__("r8") = 0;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "mov %[data], %%rdi\n\t"
                     "call *%[run]\n\t"
                     "mov %%eax, %%edi\n\t"
                     "mov %[exit], %%eax\n\t"
                     "syscall\n"
                     "1:"
                     : "=a"(r)
                     : "a"(SYS_clone), "D"(flags), "S"(stack), "d"(runs), "r"(r10),
                       "r"(r8), [run] "r"(run), [data] "r"(l), [exit] "i"(SYS_exit)
                     : "rcx", "r11", "memory");
    return r;
#else
    register long x8 __asm__("x8") = SYS_clone, x0 __asm__("x0") = flags,
                     x1 __asm__("x1") = (long)stack, x2 __asm__("x2") = (long)runs,
                     x3 __asm__("x3") = 0, x4 __asm__("x4") = (long)runs;
    __asm__ volatile("svc 0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x0, %[data]\n\t"
                     "blr %[run]\n\t"
                     "mov x8, %[exit]\n\t"
                     "svc 0\n"
                     "1:"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3),
                       "r"(x4), [run] "r"(run), [data] "r"(l), [exit] "i"(SYS_exit)
                     : "memory");
    return x0;
#endif
}

/* --- in the process that becomes the launched program ----------------------------------------- */

/* Resets every signal to its default action. The kernel's struct sigaction for SIG_DFL is all
 * zeros. */
BESIDE static void reset_signals(void) {
    const uint64_t none[4] = {0};
    for (int number = 1; number <= 64; number++)
        sys6(SYS_rt_sigaction, number, (long)none, 0, sizeof none[0], 0, 0);
}

/* Raises the process's resource limits to their maximum. A job sets limits for its training
 * processes, and they are not meant for the daemon. */
BESIDE static void raise_limits(void) {
    static const int raised[] = {RLIMIT_CPU,   RLIMIT_FSIZE,  RLIMIT_DATA,
                                 RLIMIT_NPROC, RLIMIT_NOFILE, RLIMIT_AS};
    uint64_t limit[2];
    for (unsigned i = 0; i < sizeof raised / sizeof *raised; i++)
        if (sys6(SYS_prlimit64, 0, raised[i], 0, (long)limit, 0, 0) == 0) {
            limit[0] = limit[1];
            sys6(SYS_prlimit64, 0, raised[i], (long)limit, 0, 0, 0);
        }
}

/* Removes the process's binding to certain processors and memory, and resets its priority. A
 * launcher may have bound this rank, but the daemon serves all ranks. If the process may not raise
 * its priority, the priority stays. */
BESIDE static void unbind(void) {
    uint64_t all[128];
    const int priority = 0;
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        all[i] = ~0ULL;
    sys6(SYS_sched_setaffinity, 0, sizeof all, (long)all, 0, 0, 0);
    sys6(SYS_set_mempolicy, 0 /* MPOL_DEFAULT */, 0, 0, 0, 0, 0);
    sys6(SYS_sched_setscheduler, 0, SCHED_OTHER, (long)&priority, 0, 0, 0);
    sys6(SYS_setpriority, PRIO_PROCESS, 0, 0, 0, 0, 0);
    sys6(SYS_ioprio_set, 1 /* IOPRIO_WHO_PROCESS */, 0, 0, 0, 0, 0);
}

/* Gives this process its own table of descriptors. Before this call, it shares the table of the
 * library's process, and must not change that table.
 *
 * close_range is tried first, because the new table is then empty. Kernels from 5.9 to 6.12 copy at
 * most the lowest 64 descriptors for this, and then close the copies. If the library's process is
 * writing to a file, closing a copied descriptor flushes that file. So few copies are better.
 * Kernels before 5.9 have only unshare, which copies all descriptors. Copies without FD_CLOEXEC
 * then stay open until the launched program closes them. */
BESIDE static int leave_table(void) {
    return sys6(SYS_close_range, 0, ~0U, CLOSE_RANGE_UNSHARE, 0, 0, 0) == 0 ||
           sys6(SYS_unshare, CLONE_FILES, 0, 0, 0, 0, 0) == 0;
}

/* Makes descriptors 0 and 1 refer to /dev/null, 2 to the file of `errors`, and 3 to the file of
 * `kept`. If `errors` is negative, makes 2 refer to /dev/null too. */
BESIDE static int set_descriptors(int kept, int errors) {
    const int first_free = 4;
    const int null = sys_openat(AT_FDCWD, "/dev/null", O_RDWR);
    int from[] = {null, null, errors < 0 ? null : errors, kept};
    for (int to = 0; to < first_free; to++)
        if ((from[to] = sys_fcntl(from[to], F_DUPFD_CLOEXEC, first_free)) < 0)
            return 0;
    for (int to = 0; to < first_free; to++)
        sys6(SYS_dup3, from[to], to, 0, 0, 0, 0);
    return 1;
}

BESIDE static void say_failed(const char *path) {
    static const char before[] = "monarch: no daemon was started: cannot execute ";
    unsigned long n = 0;
    while (path[n])
        n++;
    sys_write(2, before, sizeof before - 1);
    sys_write(2, path, n);
    sys_write(2, "\n", 1);
}

/* Turns the second process into the launched program. The process leaves the process group of the
 * library's process, so that signals to that group do not reach it. It stays in the same session
 * (setsid(2)). The docstring of `spawn` in monarch_py/daemon/starting.py explains why. */
BESIDE static int become(struct monarch_launch *l) {
    const uint64_t none = 0;
    int errors = -1;
    if (!leave_table())
        return 1;
    sys6(SYS_setpgid, 0, 0, 0, 0, 0, 0);
    sys6(SYS_umask, 077, 0, 0, 0, 0, 0);
    raise_limits();
    int kept = l->prepare(l->data, &errors);
    if (kept < 0 || !set_descriptors(kept, errors))
        return 1;
    reset_signals();
    unbind();
    sys6(SYS_chdir, (long)"/", 0, 0, 0, 0, 0);
    sys6(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, sizeof none, 0, 0);
    sys6(SYS_execve, (long)l->argv[0], (long)l->argv, (long)l->envp, 0, 0, 0);
    say_failed(l->argv[0]);
    return 1;
}

/* --- in the intermediate process -------------------------------------------------------------- */

/* Runs in the intermediate process. Makes the second process, and then ends. The second process is
 * then an orphan, and the init process or a subreaper adopts it. */
BESIDE static int leave_orphan(struct monarch_launch *l) {
    run_beside(become, l, l->stack + sizeof l->stack - BETWEEN_STACK, &l->runs);
    return 0;
}

/* --- in the process that calls monarch_launch ------------------------------------------------- */

/* Waits until the kernel sets *runs to 0, but at most limit_ns. The kernel does so when the process
 * whose pid is in *runs has ended or has executed a program. */
static void await(const uint32_t *runs, uint64_t limit_ns) {
    uint64_t begin = monarch_now_ns();
    uint32_t seen;
    while ((seen = __atomic_load_n(runs, __ATOMIC_ACQUIRE)) && monarch_now_ns() - begin < limit_ns)
        sys_futex_wait(runs, seen, (long)limit_ns);
}

/* Reaps the intermediate process if it has ended, so that it does not remain a zombie. Returns
 * whether the process has been reaped. */
static int is_reaped(struct monarch_launch *l) {
    if (l->between && sys6(SYS_wait4, l->between, 0, __WALL | WNOHANG, 0, 0, 0) == 0)
        return 0;
    l->between = 0;
    return 1;
}

/* In a forked child, `l` is a copy of the parent's structure. No other process uses the copy, so
 * the result is 1. */
int monarch_launch_is_over(struct monarch_launch *l) {
    if (l->owner != (uint32_t)sys_getpid())
        return 1;
    return !__atomic_load_n(&l->between_runs, __ATOMIC_ACQUIRE) &&
           !__atomic_load_n(&l->runs, __ATOMIC_ACQUIRE) && is_reaped(l);
}

int monarch_launch(struct monarch_launch *l) {
    l->owner = (uint32_t)sys_getpid();
    l->between_runs = l->runs = 0;
    long pid = run_beside(leave_orphan, l, l->stack + sizeof l->stack, &l->between_runs);
    if (pid < 0)
        return 0;
    l->between = (uint32_t)pid;
    await(&l->between_runs, BETWEEN_NS);
    /* The kernel sets `between_runs` to 0 a moment before the intermediate process ends. So this
     * loop waits briefly until that process can be reaped. */
    for (unsigned n = 0; n < 64 && !l->between_runs && !is_reaped(l); n++)
        sys_relax(n);
    await(&l->runs, START_NS);
    return 1;
}
