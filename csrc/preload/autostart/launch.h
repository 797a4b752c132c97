/* Starts a program that has nothing to do with this process: neither its wait, nor its signals, nor
 * a reader of its descriptors notices the program. */
#pragma once

/* Room for the stacks of the two processes that run before the program does [bytes]. */
#define MONARCH_LAUNCH_STACK 16384

struct monarch_launch {
    const char *const *argv; /* argv[0] is the program's path */
    const char *const *envp;
    int kept;    /* the program gets this descriptor as number 3, and no other of ours */
    void *stack; /* the end of MONARCH_LAUNCH_STACK bytes */
};

/* Returns once the program runs, or has failed to start. It makes only system calls, does not
 * change errno, and returns 0 if the kernel makes no process. */
int monarch_launch(const struct monarch_launch *l);
