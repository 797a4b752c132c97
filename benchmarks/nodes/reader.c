/* One rank of a job: threads take files from a list, as the workers of a loader do. A thread reads
 * a file to its end, and then sleeps for a while instead of computing.
 *
 *   reader THREADS BLOCK
 *
 * BLOCK is the size of a read [bytes]. The line "epoch LIST COMPUTE" on standard input runs one
 * epoch. LIST is a file that contains the paths of the files to read; each path ends with a NUL
 * byte. COMPUTE is the time [ns] that a thread sleeps after each file. The answer is one line. It
 * contains four times [ns]: the wall time of the epoch, the CPU time of all threads, the total time
 * of calls that open or read a file, and the longest time of such a call. Then follow the number of
 * bytes read, the number of files that could not be read, and a digest that depends on the value
 * and the position of every byte.
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

static char **paths, *list;
static size_t block;
static uint64_t count, compute_ns;
static uint64_t next_file, bytes, failed, io_ns, longest_ns, digest; /* atomic */

static void die(const char *what) {
    fprintf(stderr, "reader: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void load(const char *file) {
    struct stat st;
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0)
        die(file);
    size_t size = (size_t)st.st_size;
    list = realloc(list, size + 1);
    if (!list || read(fd, list, size) != st.st_size)
        die(file);
    close(fd);
    count = 0;
    for (size_t i = 0; i < size; i++)
        count += list[i] == 0;
    paths = realloc(paths, (count + 1) * sizeof *paths);
    if (!paths)
        die("memory");
    char *at = list;
    for (uint64_t i = 0; i < count; i++, at += strlen(at) + 1)
        paths[i] = at;
}

/* Records the duration of a call that began at `began` and has just ended. Returns the duration
 * [ns]. */
static uint64_t note(uint64_t began) {
    uint64_t took = now(CLOCK_MONOTONIC) - began;
    uint64_t seen = __atomic_load_n(&longest_ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&io_ns, took, __ATOMIC_RELAXED);
    while (took > seen && !__atomic_compare_exchange_n(&longest_ns, &seen, took, 0,
                                                       __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return took;
}

static uint64_t mix(uint64_t h, const char *data, size_t n) {
    uint64_t word;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        memcpy(&word, data + i, 8);
        h = (h ^ word) * 0x9E3779B97F4A7C15ULL;
    }
    for (size_t i = n & ~(size_t)7; i < n; i++)
        h = (h ^ (unsigned char)data[i]) * 0x9E3779B97F4A7C15ULL;
    return h ^ h >> 32;
}

static void read_file(uint64_t number, char *buffer) {
    struct stat st;
    uint64_t at = 0, h = number, began = now(CLOCK_MONOTONIC);
    int fd = open(paths[number], O_RDONLY | O_CLOEXEC), bad = fd < 0 || fstat(fd, &st) != 0;
    note(began);
    for (ssize_t n = 1; !bad && n > 0; at += (uint64_t)n) {
        began = now(CLOCK_MONOTONIC);
        n = read(fd, buffer, block);
        note(began);
        bad = n < 0;
        h = n > 0 ? mix(h, buffer, (size_t)n) : h;
    }
    if (fd >= 0)
        close(fd);
    if (bad || at != (uint64_t)st.st_size)
        __atomic_fetch_add(&failed, 1, __ATOMIC_RELAXED);
    else
        __atomic_fetch_add(&bytes, at, __ATOMIC_RELAXED);
    __atomic_fetch_add(&digest, h, __ATOMIC_RELAXED);
}

static void *read_files(void *arg) {
    char *buffer = malloc(block);
    struct timespec work = {(time_t)(compute_ns / 1000000000), (long)(compute_ns % 1000000000)};
    if (!buffer)
        die("memory");
    for (uint64_t i; (i = __atomic_fetch_add(&next_file, 1, __ATOMIC_RELAXED)) < count;) {
        read_file(i, buffer);
        if (compute_ns)
            nanosleep(&work, NULL);
    }
    free(buffer);
    return arg;
}

static void run_epoch(int threads) {
    pthread_t thread[256];
    next_file = bytes = failed = io_ns = longest_ns = digest = 0;
    uint64_t wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, read_files, NULL) != 0)
            die("thread");
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    wall = now(CLOCK_MONOTONIC) - wall;
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    /* Shorten the digest to 53 bits, so that a number in JSON can represent it exactly. */
    uint64_t all[] = {wall, cpu, io_ns, longest_ns, bytes, failed, digest >> 11};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        printf("%llu%c", (unsigned long long)all[i], i + 1 < sizeof all / sizeof *all ? ' ' : '\n');
    fflush(stdout);
}

int main(int argc, char **argv) {
    char file[4096];
    unsigned long long compute;
    int threads = argc == 3 ? atoi(argv[1]) : 0;
    block = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
    if (threads < 1 || threads > 256 || block < 1) {
        fputs("usage: reader THREADS BLOCK\n", stderr);
        return 2;
    }
    while (scanf(" epoch %4095s %llu", file, &compute) == 2) {
        load(file);
        compute_ns = compute;
        run_epoch(threads);
    }
    return 0;
}
