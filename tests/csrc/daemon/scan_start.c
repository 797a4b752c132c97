/* Tests scan/scan.c: how the threads of a scan start and end, and when they lower their
 * priority. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

static int stat_flags; /* the flags of the last call of statx */
static int tell_stat(int dir, const char *path, int flags, unsigned mask, struct statx *x) {
    stat_flags = flags;
    return statx(dir, path, flags, mask, x);
}
static int made, fails_at, lacks_memory;
static void *scarce_calloc(size_t n, size_t size) { return lacks_memory ? NULL : calloc(n, size); }
static int make_thread(pthread_t *thread, const pthread_attr_t *a, void *(*run)(void *),
                       void *arg) {
    if (made++ != fails_at)
        return pthread_create(thread, a, run, arg);
    *thread = 77; /* POSIX leaves the value undefined */
    return EAGAIN;
}

/* How often the thread has slept since it began, and the priority that it set last. */
static long sleeps;
static int usage_error, priority, rises;
static int tell_usage(int who, struct rusage *u) {
    *u = (struct rusage){.ru_nvcsw = 100 + sleeps};
    return usage_error;
}
static int set_priority(int which, id_t who, int to) {
    rises++;
    priority = to;
    return 0;
}

#include "scan/scan.h"
/* Replacements for what the threads do with names and directories. A thread that walks a directory
 * waits while another thread holds `gate`. */
static uint64_t looks_of_task = 1;
static __thread uint64_t looks;
static int walked, looked;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static sem_t walks; /* posted when a thread begins to walk a directory */
static void look_at(struct monarch_scan *s, struct monarch_batch **batch, struct task *t) {
    __atomic_fetch_add(&looked, 1, __ATOMIC_SEQ_CST);
    looks += looks_of_task;
}
static char walk_order[40];
static void walk(struct monarch_scan *s, struct monarch_batch **batch, struct task *t) {
    sem_post(&walks);
    pthread_mutex_lock(&gate);
    __builtin_strcat(walk_order, t->path);
    __builtin_strcat(walk_order, t->is_first ? " " : "- ");
    pthread_mutex_unlock(&gate);
    looks += looks_of_task;
    __atomic_fetch_add(&walked, 1, __ATOMIC_SEQ_CST);
}
static uint64_t tell_looks(void) { return looks; }
#define statx(dir, path, flags, mask, x) tell_stat(dir, path, flags, mask, x)
#define calloc scarce_calloc
#define pthread_create make_thread
#define getrusage tell_usage
#define setpriority set_priority
#define monarch_look_at_names look_at
#define monarch_walk_directory walk
#define monarch_looks tell_looks
#include "scan/scan.c"
#undef calloc
#undef statx

#include "checks.h"

static struct monarch_scan *s;
static uint32_t bell;
static int here;

static void make(void) {
    here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fails_at = -1;
    made = walked = looked = usage_error = rises = 0;
    looks_of_task = 1;
    bell = 0;
    walk_order[0] = 0;
}

static void stop(void) {
    SAME(monarch_scan_stop(s, 20000), 0);
    close(here);
}

/* Waits until the scan's threads have ended. */
static void join_all(void) {
    for (int i = 0; s->thread[i]; i++) {
        pthread_join(s->thread[i], NULL);
        s->thread[i] = 0;
    }
}

/* --- start and stop --------------------------------------------------------------------------- */

/* A scan of a whole source begins with its root. A scan of parts begins with the directories that
 * the caller names, in their order. */
TEST(a_scan_begins_where_it_is_told) {
    const char *parts[] = {"a", "b", "c"};
    for (int way = 0; way < 3; way++) {
        make();
        s = way == 0 ? monarch_scan_start(here, 5, 1, 0, &bell)
                     : monarch_scan_parts(here, 5, parts, 3, way == 1, 1, 0, &bell);
        struct stat st;
        CHECK(s && fstat(here, &st) == 0 && s->dev == st.st_dev && s->source == 5);
        CHECK(stat_flags & AT_STATX_DONT_SYNC); /* the daemon's loop does not wait for the source */
        CHECK(s->root == here && s->is_deep == (way < 2) && s->is_whole == (way == 0));
        monarch_scan_allow(s, -1, -1);
        join_all();
        CHECK(strcmp(walk_order, way ? "a b c " : " ") == 0);
        SAME(s->threads, 0);
        SAME(bell, 1); /* the daemon learns that the scan has ended */
        stop();
    }
}

/* If there is no memory, or the root cannot be used, no scan starts, and nothing is left behind. */
TEST(a_scan_starts_or_leaves_nothing) {
    const char *parts[] = {"a"};
    make();
    CHECK(!monarch_scan_start(-1, 0, 1, 0, &bell));
    CHECK(!monarch_scan_parts(-1, 0, parts, 1, 1, 1, 0, &bell));
    lacks_memory = 1;
    CHECK(!monarch_scan_start(here, 0, 1, 0, &bell));
    lacks_memory = 0;
    SAME(made, 0);
    close(here);
}

/* If only some of the threads can be started, they do the complete scan. If no thread can be
 * started, the scan reports an error. */
TEST(missing_threads_are_not_waited_for) {
    for (int started = 0; started < 4; started++) {
        make();
        fails_at = started;
        s = monarch_scan_start(here, 0, 3, 0, &bell);
        CHECK(s && !s->thread[started]);
        monarch_scan_allow(s, -1, -1);
        join_all();
        int error = 0, is_none = started == 0;
        SAME(walked, !is_none);
        SAME(monarch_scan_errors(s, &error), is_none);
        SAME(error, is_none ? EAGAIN : 0);
        CHECK(s->threads == 0 && s->busy == 0);
        SAME(bell, started);
        stop();
    }
}

/* A scan that waits for an allowance stops at once. If a thread hangs, monarch_scan_stop counts it
 * and frees nothing. */
TEST(a_scan_stops_while_it_waits) {
    make();
    s = monarch_scan_start(here, 0, 2, 0, &bell);
    stop();
    SAME(walked, 0);
    make();
    pthread_mutex_lock(&gate);
    s = monarch_scan_start(here, 0, 1, 0, &bell);
    monarch_scan_allow(s, -1, -1);
    sem_wait(&walks);
    SAME(monarch_scan_stop(s, 1), 1);
    pthread_mutex_unlock(&gate);
    stop();
}

/* monarch_scan_skip_known stores what the scan needs to skip known files. monarch_scan_up returns
 * the inode number of the root's "..", or 0 before it is known. */
TEST(a_scan_skips_what_is_known) {
    make();
    struct monarch_writer *w = monarch_writer_new();
    struct monarch_clients *clients = calloc(1, sizeof *clients);
    s = monarch_scan_start(here, 0, 1, 0, &bell);
    monarch_scan_skip_known(s, w, clients, -9);
    CHECK(s->writer == w && s->clients == clients && s->since_ns == -9);
    SAME(monarch_scan_up(s), 0);
    s->up_ino = 17;
    SAME(monarch_scan_up(s), 17);
    stop();
    monarch_writer_free(w);
    free(clients);
}

/* --- priority --------------------------------------------------------------------------------- */

static void *run(void *arg) { return scan_thread(arg); }

/* A thread that hardly ever sleeps while it examines names lowers its priority, once. It decides
 * when it has examined LOOKS names. A thread that often sleeps reads a remote source, so it keeps
 * its priority. */
TEST(a_thread_that_hardly_sleeps_stands_back) {
    const struct {
        uint64_t looks;
        long sleeps;
        int error, stands_back;
    } cases[] = {{LOOKS - 1, 0, 0, 0},
                 {LOOKS, 0, 0, 1},
                 {LOOKS, LOOKS / LOOKS_EACH_SLEEP, 0, 1},
                 {LOOKS, LOOKS / LOOKS_EACH_SLEEP + 1, 0, 0},
                 {10 * LOOKS, 10 * LOOKS / LOOKS_EACH_SLEEP, 0, 1},
                 {LOOKS, 0, -1, 0}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rusage begin = {.ru_nvcsw = 100};
        looks = cases[i].looks;
        sleeps = cases[i].sleeps;
        usage_error = cases[i].error;
        rises = priority = 0;
        if (looks >= LOOKS) {
            SAME(stands_back(&begin), cases[i].stands_back);
            SAME(priority, cases[i].stands_back ? 19 : 0);
        }
        make();
        usage_error = cases[i].error;
        looks_of_task = cases[i].looks;
        s = new_scan(here, 0, 0, 0, &bell);
        for (int n = 0; n < 2; n++) {
            struct task *t = monarch_new_task(s, "x", 0);
            t->names = 1;
            monarch_add_task(s, t);
        }
        if (looks_of_task < LOOKS)
            free(monarch_take_task(s)); /* only one of the two tasks is left */
        s->may_look[0] = ALL_NAMES;
        s->busy = s->threads = 1;
        sleeps = 0;
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, run, s) == 0);
        pthread_join(thread, NULL);
        int falls = looks_of_task >= LOOKS && !usage_error;
        SAME(rises, falls);
        SAME(looked, looks_of_task < LOOKS ? 1 : 2);
        stop();
    }
}
