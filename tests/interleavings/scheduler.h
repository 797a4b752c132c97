/* Runs threads one at a time, in every order of their steps within a bound.
 *
 * A step is an atomic access, a system call, a lock that is taken or given back, or a call of
 * step(). Code that is compiled with -fsanitize=thread makes its atomic accesses here
 * (accesses.c), and its calls that wait (calls.c). Memory is sequentially consistent. A step takes
 * a microsecond; more time passes when all threads wait, or where an interrupt lets it pass. */
#ifndef SCHEDULER_H
#define SCHEDULER_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* One way in which a program may go on: reset() before, the threads, then check(), in a process of
 * its own. */
#define TRIAL_THREADS 4
struct trial {
    const char *name;
    void (*reset)(void); /* may start threads: they go to sleep before the others begin */
    void (*thread[TRIAL_THREADS])(void);
    void (*check)(void);
};

/* Explores the orders with no more than `bound` interrupts, those with fewer first. Without an
 * interrupt a thread goes on until it waits or ends, and then the next one that does not wait, or
 * the one whose wait ends first; an interrupt is any other choice, also that of a thread whose wait
 * then ends because its time has come, while others could have gone on.
 * restore() comes before each, in the calling process. Returns how many orders there were; ends the
 * program at the first that is wrong, and prints it.
 */
uint64_t explore(const struct trial *trial, void (*restore)(void), unsigned bound, uint64_t most);

/* Of the orders whose first interrupt is at every nth decision this process tries one share; those
 * without an interrupt are tried by all. */
void take_share(unsigned number, unsigned of, unsigned nth);

/* Something has happened that other threads may see; `at`: in the code there; what: where in the
 * memory. */
void step(void);
void step_of(const void *at);
void step_at(const volatile void *what, const void *at);
/* Accesses to these bytes are no steps. */
void ignore_memory(const void *at, size_t n);

/* The calling thread can do nothing until others have made a step, or some time has passed. */
void step_waiting(void);
/* The same until `what` is woken, with one of these bits, or it is so late. Whether it was woken.
 */
#define NEVER UINT64_MAX
#define ANY_BIT UINT32_MAX
int sleep_on(const void *what, uint64_t until_ns, uint32_t bits);
/* Wakes up to `most` threads; no step. */
void wake(const void *what, int most, uint32_t bits);
/* On which a thread sleeps that waits for what comes to a socket. */
#define INCOMING ((const void *)1)

uint64_t scheduled_ns(void);
void pass_time(uint64_t ns);
/* Of that, what has passed while some thread could have gone on. */
uint64_t held_up_ns(void);
/* By the calling thread. */
int locks_held(void);

/* As pthread_create and pthread_join. */
int start_thread(pthread_t *id, const pthread_attr_t *attributes, void *(*function)(void *),
                 void *arg);
void join_thread(pthread_t id);

__attribute__((noreturn, format(printf, 1, 2))) void wrong(const char *format, ...);
#define EXPECT(ok)                                               \
    do {                                                         \
        if (!(ok))                                               \
            wrong("%s:%d: not so: %s", __FILE__, __LINE__, #ok); \
    } while (0)

#endif
