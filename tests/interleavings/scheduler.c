#include "scheduler.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_THREADS 8
/* A run whose threads have made more steps than this is considered to be endless. */
#define MOST_STEPS 60000
#define MOST_CHOICES 8192
#define MOST_IGNORED 16
/* Times [ns]: STEP_NS is the duration of a step, WAIT_NS is the longest wait of step_waiting(), and
 * BEGIN_NS is the time at the start of a run. */
#define STEP_NS 1000
#define WAIT_NS 10000000
#define BEGIN_NS 1000000000000ULL
/* Exit status of a run that must be tried again. A run replays the first decisions of the previous
 * run. If the number of options at one of these decisions is no longer the same, the run proves
 * nothing. This may happen if a file has a different inode number than before. The library keeps a
 * filter with a few bits for each inode number, and takes other steps if the numbers of two files
 * share a bit. */
#define LED_ELSEWHERE 3
/* The largest number of attempts to run one order of the steps. */
#define MOST_TRIES 5

enum state { READY, WAITING, DONE };

static struct thread {
    enum state state;
    const void *on;    /* if WAITING: wake(on) ends the wait; NULL: any thread's step ends it */
    uint32_t bits;     /* if WAITING: wake() must be called with one of these bits */
    uint64_t until_ns; /* if WAITING: the wait ends at this time at the latest */
    int is_woken, is_joined;
    sem_t may_run;
    pthread_t id;
    void *(*function)(void *);
    void *arg;
} threads[MOST_THREADS];
static unsigned count;
static sem_t over;
/* If 0, there are no choices: a thread runs until it waits. Then the next thread that can continue
 * runs. This goes on until all threads wait. */
static int is_exploring;
static uint64_t held_ns;
static __thread int me = -1; /* the number of the thread; -1: it is not scheduled */

struct choice {
    uint8_t taken, options;
};

/* The decisions of a run. The first `known` decisions are those of the previous run, except that
 * the last of them takes its next option. All later decisions take their first option. The memory
 * is shared with the processes of the runs. */
static struct decisions {
    struct choice choice[MOST_CHOICES];
    unsigned known, made;
} * decisions;
static unsigned interrupts, most_interrupts;

/* The thread switches of this run, which are printed if it fails: thread `from` was at address `at`
 * in the code, and thread `to` went on. */
static struct {
    int from, to;
    const void *at;
    unsigned step;
} switches[MOST_CHOICES];
static unsigned switched, steps;
static const struct trial *running;
static uint64_t runs, clock_ns;

static struct { const char *begin, *end; } ignored[MOST_IGNORED];
static unsigned ignored_count;

void ignore_memory(const void *at, size_t n) {
    if (ignored_count == MOST_IGNORED)
        wrong("too many ranges are ignored");
    ignored[ignored_count].begin = at;
    ignored[ignored_count++].end = (const char *)at + n;
}

static int is_ignored(const volatile void *at) {
    for (unsigned i = 0; i < ignored_count; i++)
        if ((const char *)at >= ignored[i].begin && (const char *)at < ignored[i].end)
            return 1;
    return 0;
}

void wrong(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s, run %llu: ", running ? running->name : "none", (unsigned long long)runs);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    for (unsigned i = 0; i < switched; i++)
        fprintf(stderr, "  step %u: thread %d at (%s+%p), then thread %d\n", switches[i].step,
                switches[i].from, program_invocation_short_name, switches[i].at, switches[i].to);
    _exit(1);
}

/* --- decisions -----------------------------------------------------------------------------------
 */

static unsigned choose(unsigned options) {
    struct decisions *d = decisions;
    if (options < 2)
        return 0;
    if (d->made == MOST_CHOICES)
        wrong("too many decisions");
    struct choice *c = &d->choice[d->made++];
    if (d->made > d->known)
        *c = (struct choice){0, (uint8_t)options};
    else if (c->options != options)
        _exit(LED_ELSEWHERE);
    return c->taken;
}

static unsigned share, shares = 1, every = 1;

void take_share(unsigned number, unsigned of, unsigned nth) {
    share = number;
    shares = of;
    every = nth;
}

/* Returns whether decision `i` has another option that this process must try. Decision 0 determines
 * which thread begins, so it is never an interrupt. The orders are divided among the processes. An
 * order has its first interrupt at some decision, and the number of that decision determines which
 * process runs the order. */
static int has_more(const struct decisions *d, unsigned i) {
    unsigned interrupt = 1;
    while (interrupt < i && !d->choice[interrupt].taken)
        interrupt++;
    int is_ours = i % every == 0 && i / every % shares == share;
    return d->choice[i].taken + 1 < d->choice[i].options && (interrupt != i || is_ours);
}

/* Sets the decisions of the next order; returns 0 if all orders were tried. */
static int next_order(void) {
    struct decisions *d = decisions;
    d->known = d->made;
    while (d->known && !has_more(d, d->known - 1))
        d->known--;
    if (d->known)
        d->choice[d->known - 1].taken++;
    return d->known != 0;
}

/* Appends the threads in the state `state` to the `n` options, beginning with thread `first`. A
 * thread that waits without a time limit is left out, because the scheduler cannot choose it.
 * Returns the new number of options. */
static unsigned add_threads(int first, enum state state, int *options, unsigned n) {
    for (int i = 0; i < (int)count; i++) {
        int k = (first + i) % (int)count;
        if (threads[k].state == state && (state == READY || threads[k].until_ns != NEVER))
            options[n++] = k;
    }
    return n;
}

/* Moves the thread whose wait ends first to the front of the `n` options. */
static void put_earliest_first(int *options, unsigned n) {
    for (unsigned i = 1; i < n; i++)
        if (threads[options[i]].until_ns < threads[options[0]].until_ns) {
            int earlier = options[i];
            options[i] = options[0];
            options[0] = earlier;
        }
}

static int is_anybody_left(void) {
    for (unsigned i = 0; i < count; i++)
        if (threads[i].state != DONE)
            return 1;
    return 0;
}

/* Decides which thread makes the next step after a step of thread `from` (-1: at the start of a
 * run). Returns this thread, or -1 if there is none. The decision's options are the threads that
 * can go on. The first option is thread `from`. If thread `from` waits, the first option is the
 * next thread that does not wait. If all threads wait, it is the thread whose wait ends first. Any
 * other choice is an interrupt. */
static int successor(int from) {
    int options[MOST_THREADS], first = from >= 0 && threads[from].state == READY ? from : from + 1;
    unsigned ready = add_threads(first, READY, options, 0), n = ready;
    if (!is_exploring)
        return ready ? options[0] : -1;
    n = add_threads(first, WAITING, options, n);
    if (!ready)
        put_earliest_first(options, n);
    if (!n)
        return -1;
    unsigned chosen = choose(from < 0 || interrupts < most_interrupts ? n : 1);
    interrupts += from >= 0 && chosen;
    return options[chosen];
}

static void make_ready(struct thread *t, int is_woken) {
    t->state = READY;
    t->is_woken = is_woken;
}

void wake(const void *what, int most, uint32_t bits) {
    for (int i = 0; i < (int)count && most > 0; i++)
        if (threads[i].state == WAITING && threads[i].on == what && threads[i].bits & bits) {
            make_ready(&threads[i], 1);
            most--;
        }
}

/* Advances the clock to `until_ns`. Adds to `held_ns` the part of the skipped time in which some
 * thread could have gone on. If a thread is ready, this part is the whole skipped time. If all
 * threads wait, it begins when the first of their waits ends. */
static void let_time_pass(uint64_t until_ns) {
    uint64_t from_ns = until_ns;
    for (unsigned i = 0; i < count; i++) {
        if (threads[i].state == READY)
            from_ns = 0;
        if (threads[i].state == WAITING && threads[i].until_ns < from_ns)
            from_ns = threads[i].until_ns;
    }
    from_ns = from_ns > clock_ns ? from_ns : clock_ns;
    held_ns += until_ns > from_ns ? until_ns - from_ns : 0;
    clock_ns = until_ns > clock_ns ? until_ns : clock_ns;
}

/* Lets the next thread make its step. If a waiting thread is chosen, its wait times out. */
static void go_on(int from, const void *at) {
    int to = successor(from);
    int is_done = from >= 0 && threads[from].state == DONE;
    if (to < 0 && is_exploring && is_anybody_left())
        wrong("no thread can continue");
    if (to >= 0 && threads[to].state == WAITING) {
        let_time_pass(threads[to].until_ns);
        make_ready(&threads[to], 0);
    }
    if (to == from)
        return;
    if (switched < MOST_CHOICES) {
        switches[switched].from = from;
        switches[switched].to = to;
        switches[switched].step = steps;
        switches[switched++].at = at;
    }
    sem_post(to < 0 ? &over : &threads[to].may_run);
    if (from >= 0 && !is_done)
        sem_wait(&threads[from].may_run);
}

static int take_step(enum state state, const void *at) {
    clock_ns += STEP_NS;
    if (me < 0)
        return 1;
    int old_errno = errno;
    if (++steps > MOST_STEPS)
        wrong("does not end");
    threads[me].state = state;
    if (state == READY)
        wake(NULL, MOST_THREADS, ANY_BIT);
    go_on(me, at);
    errno = old_errno;
    return threads[me].is_woken;
}

static int wait_for(const void *what, uint64_t until_ns, uint32_t bits, const void *at) {
    if (me < 0)
        wrong("waits before the run has begun");
    threads[me].on = what;
    threads[me].until_ns = until_ns;
    threads[me].bits = bits;
    return take_step(WAITING, at);
}

void step(void) { take_step(READY, __builtin_return_address(0)); }
void step_of(const void *at) { take_step(READY, at); }
void step_at(const volatile void *what, const void *at) {
    if (me >= 0 && !is_ignored(what))
        take_step(READY, at);
}
void step_waiting(void) {
    wait_for(NULL, clock_ns + WAIT_NS, ANY_BIT, __builtin_return_address(0));
}
int sleep_on(const void *what, uint64_t until_ns, uint32_t bits) {
    return wait_for(what, until_ns, bits, __builtin_return_address(0));
}
uint64_t scheduled_ns(void) { return clock_ns; }
void pass_time(uint64_t ns) { clock_ns += ns; }
uint64_t held_up_ns(void) { return held_ns; }

/* --- runs ----------------------------------------------------------------------------------------
 */

static void *run_thread(void *number) {
    int my_number = (int)(intptr_t)number;
    struct thread *t = &threads[my_number];
    sem_wait(&t->may_run);
    me = my_number;
    t->function(t->arg);
    t->state = DONE;
    wake(NULL, MOST_THREADS, ANY_BIT);
    wake(t, MOST_THREADS, ANY_BIT);
    go_on(my_number, NULL);
    return NULL;
}

int start_thread(pthread_t *id, const pthread_attr_t *attributes, void *(*function)(void *),
                 void *arg) {
    if (count == MOST_THREADS)
        wrong("too many threads");
    struct thread *t = &threads[count];
    *t = (struct thread){.function = function, .arg = arg};
    sem_init(&t->may_run, 0, 0);
    int r = pthread_create(&t->id, attributes, run_thread, (void *)(intptr_t)count);
    if (r != 0)
        wrong("a thread cannot be started");
    count++;
    if (id)
        *id = t->id;
    return 0;
}

void join_thread(pthread_t id) {
    unsigned i = 0;
    while (i < count && !pthread_equal(threads[i].id, id))
        i++;
    if (i == count || threads[i].is_joined)
        wrong("there is no such thread");
    while (threads[i].state != DONE)
        sleep_on(&threads[i], NEVER, ANY_BIT);
    threads[i].is_joined = 1;
    pthread_join(id, NULL);
}

static void *run_trials_thread(void *number) {
    running->thread[(intptr_t)number]();
    return NULL;
}

static void run_all(void) {
    go_on(-1, NULL);
    sem_wait(&over);
}

/* Runs the trial in this process. The threads that reset() has started run until all of them wait;
 * only then do the trial's own threads begin. */
static void run_here(void) {
    clock_ns = BEGIN_NS;
    running->reset();
    if (count)
        run_all();
    steps = switched = 0;
    is_exploring = 1;
    for (intptr_t i = 0; i < TRIAL_THREADS && running->thread[i]; i++)
        start_thread(NULL, NULL, run_trials_thread, (void *)i);
    run_all();
    for (unsigned i = 0; i < count; i++)
        if (!threads[i].is_joined)
            pthread_join(threads[i].id, NULL);
    me = -1;
    running->check();
}

/* Binds the process to its current processor. Its threads run one at a time, and a switch from one
 * thread to the next is faster if both run on the same processor. */
static void stay_on_this_processor(void) {
    cpu_set_t this_one;
    CPU_ZERO(&this_one);
    CPU_SET(sched_getcpu(), &this_one);
    sched_setaffinity(0, sizeof this_one, &this_one);
}

/* Runs the trial in a new process, in which the library's memory is as it was before any run.
 * The first `known` decisions of the run are prescribed. Returns 0 if these decisions have led to
 * other steps than in the previous run, so that this run must be started again. */
static int is_led_as_before(void) {
    int status = 1;
    decisions->made = 0;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        stay_on_this_processor();
        run_here();
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        wrong("a process cannot be started");
    if (WIFEXITED(status) && WEXITSTATUS(status) == LED_ELSEWHERE)
        return 0;
    if (status != 0)
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    return decisions->made >= decisions->known;
}

static void run_once(void (*restore)(void)) {
    runs++;
    for (int tries = 0; tries < MOST_TRIES; tries++) {
        restore();
        if (is_led_as_before())
            return;
    }
    wrong("runs of one order differ: they do not begin in the same state");
}

uint64_t explore(const struct trial *trial, void (*restore)(void), unsigned bound, uint64_t most) {
    running = trial;
    sem_init(&over, 0, 0);
    decisions =
        mmap(NULL, sizeof *decisions, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (decisions == MAP_FAILED)
        wrong("there is no memory");
    for (most_interrupts = 0; most_interrupts <= bound; most_interrupts++) {
        decisions->known = 0;
        do {
            run_once(restore);
        } while (next_order() && runs < most);
    }
    return runs;
}
