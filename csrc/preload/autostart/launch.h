/* Starts a program that has nothing to do with this process: neither its wait, nor its signals, nor
 * a reader of its descriptors notices the program. */
#pragma once

#include <stdint.h>

/* Room for the stacks of the two processes that run before the program does [bytes]. */
#define MONARCH_LAUNCH_STACK 20480

/* The two processes use this in our memory, even after monarch_launch has returned. */
struct monarch_launch {
    const char *argv[8]; /* argv[0] is the program's path */
    const char *const *envp;
    /* Called in the new process, which has no descriptor and a umask of its own. It may only make
     * system calls. Returns the descriptor that the program gets as number 3, or -1 if no program
     * is to be started, and writes the one of its standard error to *errors. */
    int (*prepare)(void *data, int *errors);
    void *data;
    /* Atomic futexes: the process's number until it has left our memory. Until the process between
     * has ended, the other one may still be made. */
    uint32_t between_runs, runs;
    uint32_t owner, between; /* the processes: ours, and the one between us and the program */
    char stack[MONARCH_LAUNCH_STACK] __attribute__((aligned(16)));
};

/* Returns when the program runs, but after a few milliseconds at the latest: exec may hang for as
 * long as a file system does. It makes only system calls, does not change errno, and returns 0 if
 * the kernel makes no process. Signals must be blocked, because a handler must not run in a process
 * that shares our memory. */
int monarch_launch(struct monarch_launch *l);
/* Whether `l` may be used again. */
int monarch_launch_is_over(struct monarch_launch *l);
