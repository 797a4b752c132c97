#include "preload/autostart/launch.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "shared/sys.h"

/* The processes between us and the program share our memory, as a child of vfork does, because a
 * copy of the page tables of a large program takes long. Each has a stack of its own. They must not
 * touch errno or any other thread-local variable, because these are ours. Sanitizers would. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define BESIDE __attribute__((no_sanitize("thread", "address")))
#else
#define BESIDE
#endif

typedef int (*work)(const struct monarch_launch *l);

/* Runs `run` in a new process with our memory, and waits until this process has ended or runs
 * another program. Without an exit signal, wait() does not see it; untraced, a tracer that follows
 * children does not either. (libc's clone is not used: before glibc 2.25 it would change our cached
 * pid.) */
static long run_beside(work run, const struct monarch_launch *l, void *stack) {
    const long flags = CLONE_VM | CLONE_VFORK | CLONE_UNTRACED;
#if defined(__x86_64__)
    long r;
    register long r10 __asm__("r10") = 0, r8 __asm__("r8") = 0;
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
                     : "a"(SYS_clone), "D"(flags), "S"(stack), "d"(0), "r"(r10),
                       "r"(r8), [run] "r"(run), [data] "r"(l), [exit] "i"(SYS_exit)
                     : "rcx", "r11", "memory");
    return r;
#else
    register long x8 __asm__("x8") = SYS_clone, x0 __asm__("x0") = flags,
                     x1 __asm__("x1") = (long)stack, x2 __asm__("x2") = 0, x3 __asm__("x3") = 0,
                     x4 __asm__("x4") = 0;
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

/* --- in the process that becomes the program ------------------------------------------------- */

/* The kernel's struct sigaction for SIG_DFL is zeros. */
BESIDE static void reset_signals(void) {
    const uint64_t none[4] = {0};
    for (int number = 1; number <= 64; number++)
        sys6(SYS_rt_sigaction, number, (long)none, 0, sizeof none[0], 0, 0);
}

/* The limits that a job sets for its training are not the daemon's. */
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

/* A launcher binds each rank to processors and memory of its own; the daemon serves all of them. A
 * priority can be raised only with the right to do so. */
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

/* Leaves descriptors 0 to 2 at /dev/null, and `kept` at 3. Before Linux 5.9 the others stay open
 * until the program closes them. */
BESIDE static int leave_descriptors(int kept) {
    const int ours = 3;
    int high = sys_fcntl(kept, F_DUPFD, ours + 1), null = sys_openat(AT_FDCWD, "/dev/null", O_RDWR);
    if (high < 0 || null < 0)
        return 0;
    for (int fd = 0; fd < ours; fd++)
        if (fd != null)
            sys6(SYS_dup3, null, fd, 0, 0, 0, 0);
    sys6(SYS_dup3, high, ours, 0, 0, 0, 0);
    sys6(SYS_close_range, ours + 1, ~0U, 0, 0, 0, 0);
    return 1;
}

BESIDE static int become(const struct monarch_launch *l) {
    const uint64_t none = 0;
    sys6(SYS_setsid, 0, 0, 0, 0, 0, 0);
    reset_signals();
    unbind();
    raise_limits();
    sys6(SYS_umask, 077, 0, 0, 0, 0, 0);
    sys6(SYS_chdir, (long)"/", 0, 0, 0, 0, 0);
    if (!leave_descriptors(l->kept))
        return 1;
    sys6(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, sizeof none, 0, 0);
    sys6(SYS_execve, (long)l->argv[0], (long)l->argv, (long)l->envp, 0, 0, 0);
    return 1;
}

/* --- between ---------------------------------------------------------------------------------- */

/* The process between us and the program ends at once, so that the program becomes an orphan, whom
 * the init process or a subreaper takes in. */
BESIDE static int leave_orphan(const struct monarch_launch *l) {
    return run_beside(become, l, (char *)l->stack - MONARCH_LAUNCH_STACK / 2) < 0;
}

/* Signals are blocked, because a handler must not run in a process that shares our memory. */
int monarch_launch(const struct monarch_launch *l) {
    uint64_t signals = sys_signals(SIG_BLOCK, ~0ULL);
    long pid = run_beside(leave_orphan, l, l->stack);
    if (pid > 0)
        while (sys6(SYS_wait4, pid, 0, __WALL, 0, 0, 0) == -4 /* EINTR */)
            ;
    sys_signals(SIG_SETMASK, signals);
    return pid > 0;
}
