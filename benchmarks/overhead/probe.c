/* Executes one kind of operation n times, and reports the time. The benchmark starts two processes
 * of this program, one with and one without the preload library. The two processes run their rounds
 * alternately. If other users run programs on the machine, only the ratio of the two times is
 * meaningful.
 *
 *   probe LIST SEED [NAME=VALUE...]
 *
 * LIST is a file of paths; each path ends with a NUL byte. The arguments NAME=VALUE are added to
 * the environment of the programs that the operation `spawn` starts.
 *
 * The line "OPERATION N" on standard input runs one round. The answer is one line: the wall time
 * and the CPU time of this thread [ns], the number of operations that failed, and the number of
 * names that were listed. `list`, `open-random` and `stat-random` use all paths in a random order,
 * which depends only on SEED. Each round continues where the previous round ended. All other
 * operations use the first path of the list.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 4096

struct list {
    const char *text;
    uint32_t *order; /* offsets of the paths in `text`, shuffled */
    const char *first;
    uint64_t count, next;
};

struct round {
    struct list *list;
    char **environment;
    uint64_t n, failed, listed;
    int fd; /* a descriptor of the file at the first path; -1 before it is opened */
    off_t blocks;
};

static void die(const char *what) {
    fprintf(stderr, "probe: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t random_number(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

static void load_list(struct list *l, const char *file, uint64_t seed) {
    struct stat st;
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0 || st.st_size == 0 || st.st_size > UINT32_MAX)
        die(file);
    l->text = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (l->text == MAP_FAILED || l->text[st.st_size - 1] != 0)
        die(file);
    close(fd);
    for (off_t i = 0; i < st.st_size; i++)
        l->count += l->text[i] == 0;
    l->order = malloc(l->count * sizeof *l->order);
    if (!l->order)
        die("list");
    uint64_t at = 0;
    for (uint64_t i = 0; i < l->count; i++, at += strlen(l->text + at) + 1)
        l->order[i] = (uint32_t)at;
    l->first = l->text;
    for (uint64_t i = l->count - 1; i > 0; i--) {
        uint64_t j = random_number(&seed) % (i + 1);
        uint32_t other = l->order[j];
        l->order[j] = l->order[i];
        l->order[i] = other;
    }
}

static const char *next_path(struct list *l) {
    const char *path = l->text + l->order[l->next];
    l->next = l->next + 1 == l->count ? 0 : l->next + 1;
    return path;
}

static int open_and_close(const char *path, int flags) {
    int fd = open(path, flags);
    return fd < 0 || close(fd) != 0;
}

static void open_one(struct round *r) {
    for (uint64_t i = 0; i < r->n; i++)
        r->failed += (uint64_t)open_and_close(r->list->first, O_RDONLY | O_CLOEXEC);
}

static void open_random(struct round *r) {
    for (uint64_t i = 0; i < r->n; i++)
        r->failed += (uint64_t)open_and_close(next_path(r->list), O_RDONLY | O_CLOEXEC);
}

static void open_to_write(struct round *r) {
    for (uint64_t i = 0; i < r->n; i++)
        r->failed += (uint64_t)open_and_close(r->list->first, O_WRONLY | O_CLOEXEC);
}

static void stat_one(struct round *r) {
    struct stat st;
    for (uint64_t i = 0; i < r->n; i++)
        r->failed += stat(r->list->first, &st) != 0;
}

static void stat_random(struct round *r) {
    struct stat st;
    for (uint64_t i = 0; i < r->n; i++)
        r->failed += stat(next_path(r->list), &st) != 0;
}

static void fstat_one(struct round *r) {
    struct stat st;
    for (uint64_t i = 0; i < r->n; i++)
        r->failed += fstat(r->fd, &st) != 0;
}

static void pread_one(struct round *r) {
    static char buffer[BLOCK];
    for (uint64_t i = 0; i < r->n; i++)
        r->failed += pread(r->fd, buffer, BLOCK, (off_t)i % r->blocks * BLOCK) != BLOCK;
}

/* Lists directories. Does not call stat for the names, so that only the cost of the listing itself
 * is measured. */
static void list_directories(struct round *r) {
    for (uint64_t i = 0; i < r->n; i++) {
        DIR *listing = opendir(next_path(r->list));
        if (!listing) {
            r->failed++;
            continue;
        }
        errno = 0;
        while (readdir(listing))
            r->listed++;
        r->failed += errno != 0;
        r->failed += closedir(listing) != 0;
    }
}

static void spawn(struct round *r) {
    char *argv[] = {"true", NULL};
    for (uint64_t i = 0; i < r->n; i++) {
        pid_t pid;
        int status = 1;
        if (posix_spawn(&pid, "/bin/true", NULL, NULL, argv, r->environment) != 0 ||
            waitpid(pid, &status, 0) != pid || status != 0)
            r->failed++;
    }
}

static const struct {
    const char *name;
    void (*run)(struct round *);
    int needs_fd;
} operations[] = {
    {"open", open_one, 0},   {"open-random", open_random, 0}, {"open-write", open_to_write, 0},
    {"stat", stat_one, 0},   {"stat-random", stat_random, 0}, {"fstat", fstat_one, 1},
    {"pread", pread_one, 1}, {"list", list_directories, 0},   {"spawn", spawn, 0},
};

static uint64_t nanoseconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void prepare_fd(struct round *r) {
    struct stat st;
    r->fd = open(r->list->first, O_RDONLY | O_CLOEXEC);
    if (r->fd < 0 || fstat(r->fd, &st) != 0)
        die(r->list->first);
    r->blocks = st.st_size / BLOCK;
    if (r->blocks == 0)
        r->blocks = 1;
}

static void answer(struct round *r, const char *name) {
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        if (strcmp(operations[i].name, name) != 0)
            continue;
        if (operations[i].needs_fd && r->fd < 0)
            prepare_fd(r);
        r->failed = r->listed = 0;
        uint64_t wall = nanoseconds(CLOCK_MONOTONIC), cpu = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
        operations[i].run(r);
        cpu = nanoseconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
        wall = nanoseconds(CLOCK_MONOTONIC) - wall;
        printf("%llu %llu %llu %llu\n", (unsigned long long)wall, (unsigned long long)cpu,
               (unsigned long long)r->failed, (unsigned long long)r->listed);
        fflush(stdout);
        return;
    }
    errno = EINVAL;
    die(name);
}

static char **environment_with(char **more, int count) {
    int n = 0;
    while (environ[n])
        n++;
    char **all = calloc((size_t)(n + count + 1), sizeof *all);
    if (!all)
        die("environment");
    memcpy(all, environ, (size_t)n * sizeof *all);
    memcpy(all + n, more, (size_t)count * sizeof *all);
    return all;
}

int main(int argc, char **argv) {
    struct list list = {0};
    struct round r = {.list = &list, .fd = -1};
    char name[32];
    unsigned long long n;
    if (argc < 3) {
        fputs("usage: probe LIST SEED [NAME=VALUE...]\n", stderr);
        return 2;
    }
    load_list(&list, argv[1], strtoull(argv[2], NULL, 10));
    r.environment = environment_with(argv + 3, argc - 3);
    while (scanf("%31s %llu", name, &n) == 2) {
        r.n = n;
        answer(&r, name);
    }
    return 0;
}
