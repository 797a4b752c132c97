/* A scheduler that runs threads one at a time, in every order of their steps that has at most a
 * given number of interrupts (see explore).
 *
 * A step is an atomic access, a system call, the locking or unlocking of a mutex, or a call of
 * step(). The code under test is compiled with -fsanitize=thread, so its atomic accesses are calls
 * of functions, which accesses.c defines. If the code under test makes a call that may wait, the
 * call goes to a function of calls.c. Memory is sequentially consistent. The clock is simulated: a
 * step takes a microsecond. More time passes if all threads wait, if an interrupt lets a wait time
 * out, or if pass_time() is called. */
#ifndef SCHEDULER_H
#define SCHEDULER_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* A scenario. Each order of the steps is run in a new process. The process calls reset(), runs each
 * function of `thread` in a thread of its own, and calls check() after these threads have ended. */
#define TRIAL_THREADS 4
struct trial {
    const char *name;
    /* May start threads. They run until all of them wait. Only then do the functions of `thread`
     * start. */
    void (*reset)(void);
    void (*thread[TRIAL_THREADS])(void);
    void (*check)(void);
};

/* Runs a trial in all orders with at most `bound` interrupts; orders with fewer interrupts come
 * first. Without an interrupt, a thread runs until it waits or ends. The next thread is then a
 * thread that does not wait. If all threads wait, it is the thread whose wait ends first. An
 * interrupt is any other choice. An interrupt may also choose a waiting thread although others
 * could go on: the clock then advances to the end of its wait. Before each run, the calling process
 * calls restore(). Returns the number of runs, and stops after about `most` runs. If a run fails,
 * prints its thread switches and ends the program. */
uint64_t explore(const struct trial *trial, void (*restore)(void), unsigned bound, uint64_t most);

/* Divides the orders into shares, one for each of `of` processes. From now on, explore() in this
 * process runs only the share with the index `number`. The shares contain only orders whose first
 * interrupt comes at a decision whose number is a multiple of `nth`. Every process also runs the
 * orders without an interrupt. */
void take_share(unsigned number, unsigned of, unsigned nth);

/* Each of these functions makes a step. Call one of them after an action that other threads may
 * see. at: address of the action in the code, for reports; step() uses the address of its caller.
 * what: the memory that was accessed; step_at() makes no step if this memory is ignored. */
void step(void);
void step_of(const void *at);
void step_at(const volatile void *what, const void *at);
/* From now on, accesses to these bytes are no steps. */
void ignore_memory(const void *at, size_t n);

/* Suspends the calling thread until another thread has made a step, or some time has passed. */
void step_waiting(void);
/* Suspends the calling thread until wake() is called for `what` with at least one of the same bits,
 * or until the clock reaches `until_ns`. Returns whether the thread was woken. */
#define NEVER UINT64_MAX
#define ANY_BIT UINT32_MAX
int sleep_on(const void *what, uint64_t until_ns, uint32_t bits);
/* Wakes up to `most` threads that sleep on `what` for one of the bits `bits`. Makes no step. */
void wake(const void *what, int most, uint32_t bits);
/* The value of `what` on which a thread in epoll_wait sleeps. Messages and other events wake the
 * thread. */
#define INCOMING ((const void *)1)

uint64_t scheduled_ns(void);
void pass_time(uint64_t ns);
/* Returns for how long [ns] interrupts have held up threads that could go on. This happens if an
 * interrupt chooses a thread that waits: the clock then advances to the end of the wait. */
uint64_t held_up_ns(void);
/* The number of mutexes that the calling thread holds. */
int locks_held(void);

/* Like pthread_create and pthread_join, for a thread under the scheduler. */
int start_thread(pthread_t *id, const pthread_attr_t *attributes, void *(*function)(void *),
                 void *arg);
void join_thread(pthread_t id);

__attribute__((noreturn, format(printf, 1, 2))) void wrong(const char *format, ...);
#define EXPECT(ok)                                                     \
    do {                                                               \
        if (!(ok))                                                     \
            wrong("%s:%d: check failed: %s", __FILE__, __LINE__, #ok); \
    } while (0)

#endif
