/* Reads a dataset of small files, epoch after epoch, as a data loader does.
 *
 *   files LIST THREADS EPOCHS SHARE
 *
 * LIST is a file of paths; each path ends with a NUL byte. In every epoch, the program opens each
 * file, reads it to its end in preads of 256 KiB, and closes it. Each epoch has another random
 * order. If SHARE is below 1, every epoch reads the same random part of the list.
 *
 * The program prints the line {} before the first open, and one line of JSON after each epoch. The
 * line of an epoch contains its duration, the CPU time of this process, the number of bytes read,
 * and the number of files that failed. The line also contains the median and the 99th percentile of
 * the time from the open of a file to its last byte. All times are in seconds.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define BLOCK (256 * 1024)
#define THREADS_MOST 256

static char **paths;
static uint64_t count, next_item, failed, total;
static uint32_t *times_us;

static void die(const char *what) {
    fprintf(stderr, "files: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void load(const char *file) {
    size_t room = 16, size = 0;
    char *line = NULL;
    FILE *f = fopen(file, "re");
    paths = malloc(room * sizeof *paths);
    if (!f || !paths)
        die(file);
    for (; getdelim(&line, &size, 0, f) > 0; line = NULL, size = 0) {
        if (count == room && !(paths = realloc(paths, (room *= 2) * sizeof *paths)))
            die(file);
        paths[count++] = line;
    }
    free(line);
    fclose(f);
}

/* Shuffles the paths (Fisher-Yates). The random numbers come from Knuth's MMIX generator, so that
 * every run has the same orders. */
static void shuffle(uint64_t seed) {
    for (uint64_t i = count; i > 1; i--) {
        seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
        uint64_t j = (seed >> 33) % i;
        char *other = paths[j];
        paths[j] = paths[i - 1];
        paths[i - 1] = other;
    }
}

static int read_file(const char *path, char *buffer) {
    off_t at = 0;
    ssize_t n = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    while ((n = pread(fd, buffer, BLOCK, at)) > 0)
        at += n;
    close(fd);
    __atomic_fetch_add(&total, (uint64_t)at, __ATOMIC_RELAXED);
    return n == 0 ? 0 : -1;
}

static void *read_files(void *unused) {
    char *buffer = malloc(BLOCK);
    if (!buffer)
        die("memory");
    for (uint64_t i; (i = __atomic_fetch_add(&next_item, 1, __ATOMIC_RELAXED)) < count;) {
        uint64_t began = now_ns();
        if (read_file(paths[i], buffer) != 0 && !__atomic_fetch_add(&failed, 1, __ATOMIC_RELAXED))
            fprintf(stderr, "files: %s: %s\n", paths[i], strerror(errno));
        times_us[i] = (uint32_t)((now_ns() - began) / 1000);
    }
    free(buffer);
    return unused;
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void read_epoch(int threads) {
    pthread_t thread[THREADS_MOST];
    uint64_t began = now_ns();
    double used_s = cpu_s();
    next_item = total = failed = 0;
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, read_files, NULL) != 0)
            die("thread");
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    double seconds = (double)(now_ns() - began) / 1e9;
    used_s = cpu_s() - used_s;
    qsort(times_us, count, sizeof *times_us, by_size);
    printf("{\"seconds\": %.6f, \"program_s\": %.6f, \"bytes\": %llu, \"failed\": %llu, "
           "\"p50_s\": %.6f, \"p99_s\": %.6f}\n",
           seconds, used_s, (unsigned long long)total, (unsigned long long)failed,
           times_us[count / 2] / 1e6, times_us[count - 1 - count / 100] / 1e6);
    fflush(stdout);
}

int main(int argc, char **argv) {
    int threads = argc == 5 ? atoi(argv[2]) : 0, epochs = argc == 5 ? atoi(argv[3]) : 0;
    double share = argc == 5 ? atof(argv[4]) : 0;
    if (threads < 1 || threads > THREADS_MOST || epochs < 1 || share <= 0 || share > 1) {
        fputs("usage: files LIST THREADS EPOCHS SHARE\n", stderr);
        return 2;
    }
    load(argv[1]);
    shuffle(20221);
    count = (uint64_t)((double)count * share);
    times_us = calloc(count + 1, sizeof *times_us);
    if (!count || !times_us)
        die("nothing to read");
    puts("{}");
    fflush(stdout);
    for (int epoch = 0; epoch < epochs; epoch++) {
        shuffle((uint64_t)epoch);
        read_epoch(threads);
    }
    return 0;
}
