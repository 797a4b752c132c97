/* Two threads in an order that chance would hardly bring. */
#ifndef HOLD_H
#define HOLD_H

#define HOLD_UNAVAILABLE 77 /* the status with which hold ends the program where it cannot work */

/* Runs `first` in a thread. When that is about to make the system call `call` for the nth time,
 * with `argument` as its first argument (-1: whichever), it is held by a seccomp filter, and
 * `second` runs in another thread. The call is made when `second` is done, or when it waits for it,
 * which shows as a sched_yield. Returns, both being done, whether there was such a call. */
int hold(int call, long argument, int nth, void (*first)(void), void (*second)(void));

/* Runs `first` in a thread, and `meanwhile` in the caller's whenever that is about to make such a
 * call, which is made when `meanwhile` is done. Returns, `first` being done, how many there were.
 */
int hold_each(int call, long argument, void (*first)(void), void (*meanwhile)(void));

/* Ends the program with a message, unless it holds. */
void must(int holds, const char *what);

#endif
