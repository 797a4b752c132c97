/* Runs the tests of the C file NAME.c, which is linked with this one, and prints how many ran. Also
 * defines the functions that all tests share (checks.h).
 *
 *   daemon_units NAME */
#include <dirent.h>
#include <sys/wait.h>

#include "checks.h"
#include "copy/flow.h"
#include "copy/job.h"
#include "publish/writer.h"

#define TESTS 400
#define LIMIT_S 30

static struct test {
    const char *file, *name;
    void (*run)(void);
} tests[TESTS];
static int count;

void add_test(const char *file, const char *name, void (*run)(void)) {
    CHECK(count < TESTS);
    tests[count++] = (struct test){file, name, run};
}

static int is_of(const struct test *t, const char *name) {
    const char *file = strrchr(t->file, '/');
    file = file ? file + 1 : t->file;
    size_t n = strlen(name);
    return strncmp(file, name, n) == 0 && strcmp(file + n, ".c") == 0;
}

static void run(const struct test *t) {
    CHECK(mkdir(t->name, 0700) == 0 && chdir(t->name) == 0);
    alarm(LIMIT_S);
    /* The first descriptor that the test opens is 0. So the test fails if code treats descriptor 0
     * as "no descriptor". */
    close(0);
    t->run();
    exit(0);
}

int main(int argc, char **argv) {
    int ran = 0, failed = 0, status;
    CHECK(argc == 2);
    for (int i = 0; i < count; i++) {
        if (!is_of(&tests[i], argv[1]))
            continue;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            run(&tests[i]);
        CHECK(waitpid(child, &status, 0) == child);
        ran++;
        if (status != 0) {
            failed = 1;
            fprintf(stderr, "%s: status %#x\n", tests[i].name, (unsigned)status);
        }
    }
    printf("%d\n", ran);
    return failed;
}

/* --- functions for the tests (checks.h) ------------------------------------------------------- */

int open_descriptors(void) {
    DIR *d = opendir("/proc/self/fd");
    int n = -1; /* so that the descriptor of `d` is not counted */
    CHECK(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

int make_file(const char *path, uint64_t size, unsigned seed) {
    char buffer[65536];
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    CHECK(fd >= 0);
    for (uint64_t at = 0; at < size;) {
        uint64_t n = size - at < sizeof buffer ? size - at : sizeof buffer;
        make_bytes(seed, 0, at, buffer, n);
        CHECK(write(fd, buffer, n) == (ssize_t)n);
        at += n;
    }
    return fd;
}

struct monarch_engine *make_engine(uint64_t block_bytes) {
    struct monarch_engine *e = calloc(1, sizeof *e);
    CHECK(e);
    e->block_bytes = block_bytes;
    e->clients = calloc(1, sizeof *e->clients);
    e->fills = calloc(1, sizeof *e->fills);
    e->control = calloc(1, sizeof *e->control);
    e->endpoint = calloc(MONARCH_ENDPOINTS, sizeof *e->endpoint);
    CHECK(e->clients && e->fills && e->control && e->endpoint);
    return e;
}

void free_engine(struct monarch_engine *e) {
    free(e->clients);
    free(e->fills);
    free(e->control);
    free(e->endpoint);
    free(e);
}

struct monarch_catalog *make_catalog(uint64_t capacity) {
    struct monarch_catalog *c = calloc(1, monarch_catalog_bytes(capacity, 64 * capacity));
    CHECK(c);
    monarch_catalog_init(c, 1, capacity, 64 * capacity);
    return c;
}

struct monarch_entry *add_entry(struct monarch_catalog *c, const char *path,
                                struct monarch_entry like) {
    uint64_t id, added = 0;
    like.path = 0;
    like.path_len = (uint16_t)strlen(path);
    SAME(monarch_add(c, &like, 1, path, &id, &added), 1);
    SAME(added, 1);
    return monarch_table(c) + id;
}

struct job *make_job(int root, int copies, const char *path, uint64_t copy) {
    struct job *job = calloc(1, sizeof *job + strlen(path) + 1);
    char target[1];
    CHECK(job);
    strcpy(job->path, path);
    CHECK(monarch_stat_entry(root, 0, path, &job->entry, target, sizeof target) == 0);
    job->entry.path_len = (uint16_t)strlen(path);
    job->source_root = root;
    job->copies = copies;
    job->handed = job->slot = -1;
    for (int i = 0; i < MONARCH_ASKED + MONARCH_MOVES; i++)
        job->peer[i] = -1;
    job->result = (struct monarch_result){.copy = copy, .giver = -1, .home = -1};
    job->result.status = MONARCH_ABANDONED;
    return job;
}
