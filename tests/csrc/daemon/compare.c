#include <pthread.h>

#include "native.h"
#include "shared/pace.h"

/* may_go_on: how many more operations may begin before the time is up. started: how many threads
 * were started. */
static int may_go_on = 1000, started;
static int keep_pace(struct monarch_pace *p, uint64_t until_ns) { return may_go_on-- > 0; }
static int start_thread(pthread_t *thread, const pthread_attr_t *a, void *(*run)(void *),
                        void *arg) {
    started++;
    return 0;
}
#define monarch_keep_pace keep_pace
#define pthread_create start_thread
#define pthread_join(thread, result) ((void)(thread))
#include "scan/compare.c"
#undef pthread_create

#include "checks.h"

static struct monarch_catalog *c;
static int32_t root, roots[2]; /* all files belong to source 1 */

static struct monarch_entry *add(const char *path) {
    struct monarch_entry like;
    char target[MONARCH_PATH_MAX];
    CHECK(monarch_stat_entry(root, 1, path, &like, target, sizeof target) == 0);
    return add_entry(c, path, like);
}

static void make(void) {
    c = make_catalog(400);
    root = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    roots[0] = -1;
    roots[1] = root;
    may_go_on = 1000;
    started = 0;
}

static void done(void) {
    close(root);
    free(c);
}

static unsigned compare_one(uint64_t id, struct monarch_entry *fresh) {
    uint8_t found = 99;
    SAME(monarch_compare(c, roots, 1, &id, 1, 0, 1000000000, &found, fresh), 1);
    return found;
}

/* A file with another inode number, time or size is REPLACED. If its name is gone, or now names
 * something of another kind, the file is GONE. If the source fails, nothing is known of the file,
 * and it counts as SAME. */
TEST(each_difference_is_found) {
    struct monarch_entry fresh;
    make();
    close(make_file("file", 100, 1));
    CHECK(mkdir("d", 0700) == 0);
    struct monarch_entry *f = add("file"), *d = add("d");
    for (int is_directory = 0; is_directory < 2; is_directory++) {
        struct monarch_entry *mine = is_directory ? d : f, was = *mine;
        for (int way = 0; way < 5; way++) {
            mine->ino += way == 1;
            mine->mtime_ns += way == 2;
            mine->ctime_ns += way == 3;
            mine->size += way == 4;
            fresh = (struct monarch_entry){0};
            int differs =
                way && !(is_directory && way == 4); /* a directory's size is not compared */
            SAME(compare_one((uint64_t)is_directory, &fresh),
                 differs ? MONARCH_REPLACED : MONARCH_SAME);
            SAME(fresh.ino, differs ? was.ino : 0);
            SAME(fresh.size, differs ? was.size : 0);
            *mine = was;
        }
    }
    CHECK(unlink("file") == 0 && rmdir("d") == 0);
    SAME(compare_one(0, &fresh), MONARCH_GONE);
    SAME(compare_one(1, &fresh), MONARCH_GONE);
    CHECK(mkdir("file", 0700) == 0 && symlink("file", "d") == 0);
    SAME(compare_one(0, &fresh), MONARCH_GONE);
    SAME(compare_one(1, &fresh), MONARCH_GONE);
    roots[1] = -1;
    SAME(compare_one(0, &fresh), MONARCH_SAME);
    done();
}

/* If a directory in the path has become a file, the file below it is gone. */
TEST(a_directory_that_became_a_file_has_no_files) {
    struct monarch_entry fresh;
    make();
    CHECK(mkdir("d", 0700) == 0);
    close(make_file("d/file", 1, 1));
    add("d/file");
    CHECK(unlink("d/file") == 0 && rmdir("d") == 0);
    close(make_file("d", 1, 1));
    SAME(compare_one(0, &fresh), MONARCH_GONE);
    done();
}

/* One thread is started for every A_THREAD entries. The caller compares entries too, so if it
 * allows N threads, at most N - 1 are started. */
TEST(many_entries_are_compared_by_many_threads) {
    const struct {
        uint64_t n;
        int threads, started;
    } cases[] = {{A_THREAD - 1, 9, 0}, {A_THREAD, 9, 1}, {3 * A_THREAD, 9, 3}, {3 * A_THREAD, 3, 2},
                 {3 * A_THREAD, 1, 0}, {300, 1000, 9},   {300, 0, 0}};
    static uint64_t ids[300];
    static uint8_t found[300];
    static struct monarch_entry fresh[300];
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        make();
        unlink("file");
        close(make_file("file", 1, 1));
        add("file");
        memset(found, 99, sizeof found);
        SAME(monarch_compare(c, roots, cases[i].n, ids, cases[i].threads, 0, 1000000000, found,
                             fresh),
             cases[i].n);
        SAME(started, cases[i].started);
        for (uint64_t k = 0; k < cases[i].n; k++)
            SAME(found[k], MONARCH_SAME);
        done();
    }
}

/* When the time is up, the comparison ends and returns how many entries it has compared. */
TEST(a_comparison_ends_with_its_time) {
    uint64_t ids[5] = {0};
    uint8_t found[5];
    struct monarch_entry fresh[5];
    make();
    close(make_file("file", 1, 1));
    add("file");
    may_go_on = 3;
    SAME(monarch_compare(c, roots, 5, ids, 1, 0, 1, found, fresh), 3);
    done();
}
