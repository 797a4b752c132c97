/* Starts a program that is independent of this process.
 *
 * This process's wait() does not report the program. Signals to this process's group do not reach
 * the program. The program inherits none of this process's descriptors, except before Linux 5.9
 * (leave_table in launch.c). */
#pragma once

#include <stdint.h>

/* Total size [bytes] of two stacks: that of the intermediate process (launch.c), and that of the
 * process that later becomes the program. */
#define MONARCH_LAUNCH_STACK 20480

/* The state of one launch. This process makes an intermediate process, which makes a second
 * process. The second process becomes the program. Both new processes use this structure in this
 * process's memory, possibly even after monarch_launch has returned. So use it for another launch
 * only if monarch_launch_is_over returns 1. */
struct monarch_launch {
    const char *argv[8]; /* argv[0] is the program's path */
    const char *const *envp;
    /* Called in the second process, which already has its own table of descriptors and its own
     * umask. This function must not touch errno or any other thread-local variable (launch.c).
     * Returns the descriptor that becomes the program's descriptor 3, or -1 if no program should be
     * started. Stores in *errors the descriptor that becomes the program's standard error. */
    int (*prepare)(void *data, int *errors);
    void *data;
    /* Atomic futexes. `between_runs` is the pid of the intermediate process, and `runs` is the pid
     * of the second process. The kernel sets each variable to 0 when its process no longer uses
     * this memory. Before the intermediate process has made the second process, `runs` is 0 too,
     * but `between_runs` is not. */
    uint32_t between_runs, runs;
    uint32_t owner, between; /* pids of this process and of the intermediate process */
    char stack[MONARCH_LAUNCH_STACK] __attribute__((aligned(16)));
};

/* Launches the program. Returns 0 if the kernel cannot create a process. Otherwise returns when the
 * program runs, or after a time limit (launch.c), because exec may hang if a file system hangs.
 * Makes only system calls, and does not change errno.
 *
 * Block all signals before this call. The new processes share this process's memory, so no signal
 * handler may run in them. */
int monarch_launch(struct monarch_launch *l);
/* Returns whether the launch has ended, so that `l` may be used again. */
int monarch_launch_is_over(struct monarch_launch *l);
