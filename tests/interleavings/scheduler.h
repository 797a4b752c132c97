/* Runs threads one at a time, in every order of their steps within a bound.
 *
 * A step is an atomic access, a system call of csrc/shared/sys.h, or a call of step(). Code that is
 * compiled with -fsanitize=thread makes its atomic accesses here (scheduler.c has the functions
 * that ThreadSanitizer's library would have). Memory is sequentially consistent, and time is
 * counted in steps. */
#ifndef SCHEDULER_H
#define SCHEDULER_H

#include <stddef.h>
#include <stdint.h>

/* One way in which a program may go on: reset() before, the threads, then check(). */
struct trial {
    const char *name;
    void (*reset)(void);
    void (*thread[4])(void); /* NULL behind the last */
    void (*check)(void);
};

/* Explores the orders with no more than `bound` interrupts, those with fewer first. Without an
 * interrupt a thread goes on until it waits or ends, and then the next one that does not wait; an
 * interrupt is any other choice, also that of a thread whose wait then ends for want of time.
 * Returns how many orders there were; ends the program at the first that is wrong, and prints it.
 */
uint64_t explore(const struct trial *trial, unsigned bound, uint64_t most);

/* Something has happened that other threads may see. */
void step(void);
/* The calling thread can do nothing until others have made a step, or time has passed. */
void step_waiting(void);
/* Accesses to these bytes are no steps. */
void ignore_memory(const void *at, size_t n);

__attribute__((noreturn, format(printf, 1, 2))) void wrong(const char *format, ...);
#define EXPECT(ok)                                               \
    do {                                                         \
        if (!(ok))                                               \
            wrong("%s:%d: not so: %s", __FILE__, __LINE__, #ok); \
    } while (0)

#endif
