/* Tests scan/walk.c: what a thread of a scan does while it may not examine names, because the
 * allowance of names is used up. */
#include <pthread.h>

/* The trace has one letter for each step of the thread. "h": it hands its batch over. "w": it
 * waits. "v": it examines a name. at_wait and at_hand_over are called in these steps, and may
 * change what the scan may do. */
static char trace[200];
static void (*at_wait)(void), (*at_hand_over)(void);
static void note(char letter) {
    size_t n = __builtin_strlen(trace);
    trace[n] = letter;
    trace[n + 1] = 0;
}
static int wait_at(pthread_cond_t *c, pthread_mutex_t *m) {
    note('w');
    at_wait();
    return 0;
}
#include "scan/scan.h"
static void hand_over(struct monarch_scan *s, struct monarch_batch **batch) {
    note('h');
    if (at_hand_over)
        at_hand_over();
}
static void report(struct monarch_scan *s, struct monarch_batch **batch, struct monarch_entry *e,
                   const char *path, const char *target, uint64_t renames) {
    if (e->kind == MONARCH_FILE)
        note('v');
}
static int lacks_memory;
static struct task *new_task(struct monarch_scan *s, const char *path, size_t room) {
    return lacks_memory ? NULL : monarch_new_task(s, path, room);
}
#define monarch_new_task new_task
#define pthread_cond_wait wait_at
#define monarch_hand_over_batch hand_over
#define monarch_report report
#include "scan/walk.c"
#undef pthread_cond_wait

#include "checks.h"

static struct monarch_scan *s;
static int root;

static void make(void) {
    struct stat st;
    root = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(fstat(root, &st) == 0);
    s = calloc(1, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    s->root = root;
    s->dev = st.st_dev;
    s->threads = 1;
    s->is_deep = s->is_whole = 1;
    trace[0] = 0;
    at_hand_over = NULL;
}

static void done(void) {
    s->may_look[0] = s->may_look[1] = ALL_NAMES;
    while (monarch_has_tasks(s))
        free(monarch_take_task(s));
    free(s);
    close(root);
}

/* Walks a directory that has one file. */
static void walk(const char *path) {
    struct monarch_batch *batch = NULL;
    struct task *t = monarch_new_task(s, path, 0);
    monarch_walk_directory(s, &batch, t);
    free(t);
}

static void make_directory(const char *path) {
    char file[40];
    CHECK(mkdir(path, 0700) == 0);
    snprintf(file, sizeof file, "%s/file", path);
    close(make_file(file, 1, 1));
}

static void allow(void) { s->may_look[0] = 3; }
static void stop(void) { s->stopping = 1; }

/* A thread that may not examine any names hands its batch over and waits. Names that it examines
 * after the wait count against the new allowance. If an allowance comes while the thread hands its
 * batch over, the thread does not wait. If the scan stops, the thread examines nothing more. */
TEST(a_thread_waits_for_an_allowance) {
    make_directory("d");
    make();
    at_wait = allow;
    walk("d");
    CHECK(strcmp(trace, "hwv") == 0 && s->may_look[0] == 2);
    done();
    make();
    at_hand_over = allow;
    walk("d");
    CHECK(strcmp(trace, "hv") == 0);
    done();
    make();
    at_wait = stop;
    walk("d");
    CHECK(strcmp(trace, "hw") == 0);
    done();
    make();
    at_hand_over = stop;
    walk("d");
    CHECK(strcmp(trace, "h") == 0);
    done();
    make();
    s->may_look[0] = 1;
    walk("d");
    CHECK(strcmp(trace, "v") == 0 && s->may_look[0] == 0);
    done();
}

static unsigned wanted_left;
static void count_wanted(void) {
    wanted_left = 0;
    for (const struct task *t = s->wanted.first; t; t = t->next)
        wanted_left++;
    s->may_look[0] = s->may_look[1] = ALL_NAMES;
}

/* Instead of waiting, the thread scans a wanted directory, whose names may have an allowance of
 * their own. During this scan it may begin another such scan. It waits only if no directory is
 * wanted, or if DEEPEST such scans are nested already. The nesting is limited because the thread's
 * stack is small. */
TEST(wanted_directories_are_listed_meanwhile) {
    make_directory("d");
    for (unsigned n = 0; n < DEEPEST + 3; n++) {
        char path[2] = {(char)('A' + n), 0};
        make_directory(path);
        make();
        wanted_left = 99;
        for (unsigned i = 0; i <= n; i++) {
            path[0] = (char)('A' + i);
            monarch_scan_want(s, path, 0);
            monarch_add_task(s, monarch_new_task(s, path, 0));
        }
        at_wait = count_wanted;
        walk("d");
        SAME(wanted_left, n + 1 > DEEPEST ? n + 1 - DEEPEST : 0);
        CHECK(strchr(trace, 'w') == strrchr(trace, 'w')); /* it has waited once */
        done();
    }
    make(); /* in wanted directories, names may be examined, so the thread does not wait there */
    monarch_scan_want(s, "A", 0);
    monarch_add_task(s, monarch_new_task(s, "A", 0));
    s->may_look[1] = 1;
    at_wait = allow;
    walk("d");
    CHECK(strcmp(trace, "hvhwv") == 0);
    CHECK(s->may_look[1] == 0 && s->may_look[0] == 2);
    done();
}

/* A portion of names is wanted if its directory is wanted, and settled if its directory is
 * settled. */
TEST(a_portion_is_like_its_directory) {
    make();
    for (int bits = 0; bits < 4; bits++) {
        struct task *directory = monarch_new_task(s, "x/y", 0);
        directory->is_wanted = bits & 1;
        directory->is_settled = bits >> 1;
        struct task *t = new_portion(s, directory, 10);
        CHECK(t && strcmp(t->path, "x/y") == 0 && t->names == 0);
        CHECK(t->is_wanted == (bits & 1) && t->is_settled == bits >> 1);
        free(t);
        lacks_memory = 1;
        CHECK(!new_portion(s, directory, 10));
        lacks_memory = 0;
        free(directory);
    }
    done();
}

/* Each name of a directory is examined once, even if the directory has no names, or if its names
 * exactly fill one or two portions. */
TEST(a_directory_may_have_any_number_of_names) {
    CHECK(mkdir("many", 0700) == 0);
    for (int n = 0; n <= 2 * PORTION + 1; n++) {
        char path[20];
        make();
        s->may_look[0] = ALL_NAMES;
        walk("many");
        SAME(strlen(trace), n);
        CHECK(strspn(trace, "v") == strlen(trace));
        done();
        snprintf(path, sizeof path, "many/%d", n);
        close(make_file(path, 1, 1));
    }
}
