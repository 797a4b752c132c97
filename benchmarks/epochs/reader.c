/* Reads a complete dataset as a training job's loader does: threads take files from one shuffled
 * list. For each file, a thread calls open and fstat, then pread until the end of the file, and
 * then close.
 *
 *   reader LIST THREADS BLOCK
 *
 * LIST is a file that contains the paths of the dataset's files; each path ends with a NUL byte.
 * BLOCK is the size of a pread [bytes].
 *
 * The line "epoch N" on standard input runs one epoch, in an order that depends on N. The answer is
 * one line: the wall time of the epoch [ns], the CPU time of all threads [ns], the number of bytes
 * read, and the number of files that could not be read.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct epoch {
    char **paths;
    uint64_t count, next, bytes, failed; /* next, bytes and failed are atomic */
    size_t block;
};

static void die(const char *what) {
    fprintf(stderr, "reader: %s: %s\n", what, strerror(errno));
    exit(1);
}

static char **load(const char *file, uint64_t *count) {
    size_t room = 1024;
    char **paths = malloc(room * sizeof *paths), *line = NULL;
    FILE *f = fopen(file, "re");
    *count = 0;
    if (!f || !paths)
        die(file);
    for (size_t size = 0; getdelim(&line, &size, 0, f) > 0; line = NULL, size = 0) {
        if (*count == room && !(paths = realloc(paths, (room *= 2) * sizeof *paths)))
            die(file);
        paths[(*count)++] = line;
    }
    free(line);
    fclose(f);
    return paths;
}

static void shuffle(char **paths, uint64_t count, uint64_t seed) {
    /* The constants are those of Knuth's random number generator MMIX. */
    for (uint64_t i = count; i > 1; i--) {
        seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
        uint64_t j = (seed >> 33) % i;
        char *other = paths[j];
        paths[j] = paths[i - 1];
        paths[i - 1] = other;
    }
}

static void read_file(struct epoch *e, const char *path, char *buffer) {
    struct stat st;
    off_t at = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC), bad = fd < 0 || fstat(fd, &st) != 0;
    for (ssize_t n = 1; !bad && n > 0; at += n) {
        n = pread(fd, buffer, e->block, at);
        bad = n < 0;
    }
    if (fd >= 0)
        close(fd);
    if (bad || at != st.st_size)
        __atomic_fetch_add(&e->failed, 1, __ATOMIC_RELAXED);
    else
        __atomic_fetch_add(&e->bytes, (uint64_t)at, __ATOMIC_RELAXED);
}

static void *read_files(void *arg) {
    struct epoch *e = arg;
    char *buffer = malloc(e->block);
    if (!buffer)
        die("buffer");
    for (uint64_t i; (i = __atomic_fetch_add(&e->next, 1, __ATOMIC_RELAXED)) < e->count;)
        read_file(e, e->paths[i], buffer);
    free(buffer);
    return NULL;
}

static uint64_t nanoseconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void run_epoch(struct epoch *e, int threads, uint64_t number) {
    pthread_t thread[256];
    shuffle(e->paths, e->count, number);
    e->next = e->bytes = e->failed = 0;
    uint64_t wall = nanoseconds(CLOCK_MONOTONIC), cpu = nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, read_files, e) != 0)
            die("thread");
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    wall = nanoseconds(CLOCK_MONOTONIC) - wall;
    cpu = nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("%llu %llu %llu %llu\n", (unsigned long long)wall, (unsigned long long)cpu,
           (unsigned long long)e->bytes, (unsigned long long)e->failed);
    fflush(stdout);
}

int main(int argc, char **argv) {
    struct epoch e = {0};
    unsigned long long number;
    int threads = argc == 4 ? atoi(argv[2]) : 0;
    e.block = argc == 4 ? strtoul(argv[3], NULL, 10) : 0;
    if (threads < 1 || threads > 256 || e.block < 1) {
        fputs("usage: reader LIST THREADS BLOCK\n", stderr);
        return 2;
    }
    e.paths = load(argv[1], &e.count);
    while (scanf(" epoch %llu", &number) == 1)
        run_epoch(&e, threads, number);
    return 0;
}
