/* Runs two threads in an order that would hardly come about by chance. */
#ifndef HOLD_H
#define HOLD_H

#define HOLD_UNAVAILABLE 77 /* the status with which hold ends the program where it cannot work */

/* Runs `first` in a thread. When this thread is about to make the system call `call` for the nth
 * time, with `argument` as its first argument (-1: any), a seccomp filter holds it, and `second`
 * runs in another thread. The held call is made when `second` has returned, or when `second` calls
 * sched_yield, which shows that it waits for the first thread. Returns whether `first` made such a
 * call, after both functions have returned. */
int hold(int call, long argument, int nth, void (*first)(void), void (*second)(void));

/* Runs `first` in a thread. Before each such system call of this thread, the calling thread runs
 * `meanwhile`; the call is made after that. Returns how many such calls there were, once `first`
 * has returned. */
int hold_each(int call, long argument, void (*first)(void), void (*meanwhile)(void));

/* If `holds` is 0, ends the program with a message. */
void must(int holds, const char *what);

#endif
