/* Runs two threads in an order that would hardly ever happen by chance. */
#ifndef HOLD_H
#define HOLD_H

#define HOLD_UNAVAILABLE 77 /* exit status if the kernel refuses a seccomp listener */

/* Runs `first` in a thread until this thread is about to make the system call `call` for the nth
 * time, with `argument` as the call's first argument (-1: any). A seccomp filter then holds the
 * thread, and `second` runs in another thread. The held call is made when `second` has returned, or
 * when `second` calls sched_yield, which shows that `second` waits for the first thread. After both
 * functions have returned, returns whether a call was held. */
int hold(int call, long argument, int nth, void (*first)(void), void (*second)(void));

/* Runs `first` in a thread. Before each system call `call` of this thread with `argument` as its
 * first argument, the calling thread runs `meanwhile`; only then does the system call continue.
 * Returns the number of such calls when `first` has returned. */
int hold_each(int call, long argument, void (*first)(void), void (*meanwhile)(void));

/* If `holds` is 0, ends the program with a message. */
void must(int holds, const char *what);

#endif
