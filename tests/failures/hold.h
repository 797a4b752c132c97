/* Runs two threads in an order that would hardly ever happen by chance. */
#ifndef HOLD_H
#define HOLD_H

#define HOLD_UNAVAILABLE 77 /* exit status if the kernel refuses a seccomp listener */

/* Runs `first` in a thread. Counts the thread's system calls `call` whose first argument is
 * `argument` (-1: with any first argument). Just before the nth of these calls, a seccomp filter
 * holds the thread, and `second` runs in another thread. The held call is made when `second` has
 * returned, or when `second` calls sched_yield, which shows that `second` waits for the first
 * thread. After both functions have returned, returns whether a call was held. */
int hold(int call, long argument, int nth, void (*first)(void), void (*second)(void));

/* Runs `first` in a thread. Whenever this thread is about to make the system call `call` with
 * `argument` as its first argument, the caller of hold_each runs `meanwhile`, and only then lets
 * the system call continue. After `first` has returned, returns the number of these calls. */
int hold_each(int call, long argument, void (*first)(void), void (*meanwhile)(void));

/* If `holds` is 0, ends the program with a message. */
void must(int holds, const char *what);

#endif
