/* Reads a dataset one time, and reports the times.
 *
 *   reader HOW LIST THREADS BLOCK     HOW: read, pread, random, mmap or fread
 *
 * LIST is a file of paths; each path ends with a NUL byte. BLOCK is the size of a read [bytes].
 * Threads take files from the list, in its order, and read each file to its end. But if HOW is
 * `random`, the threads take single blocks in a random order over all files, and read each block
 * with one pread. The program prints one JSON object with these values:
 *
 * - the duration, the number of bytes read, and the number of files that failed
 * - the longest time until a thread had read its first block
 * - the median, the 99th percentile and the maximum of the times of single reads
 * - the number of bytes read in each span of 50 ms
 *
 * All times are in seconds.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SPAN_NS 50000000
#define SPANS 4096
#define TIMES (1 << 20)

static char **paths;
static uint64_t count, next_item, failed, total, start_ns;
/* Used only if HOW is `random`. There is one entry for each block of each file. The upper 32 bits
 * are the index of the file, and the lower 32 bits the index of the block in the file. */
static uint64_t *blocks, block_count;
static int *descriptors;
static size_t block;
static const char *how;
static uint64_t per_span[SPANS], first_ns;
static uint32_t *times_us, timed;

static void die(const char *what) {
    fprintf(stderr, "reader: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now(void) {
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

/* Records a read of n bytes that began at `began` and has just ended. */
static void note(uint64_t began, uint64_t n, int *is_first) {
    uint64_t end = now(), span = (end - start_ns) / SPAN_NS;
    __atomic_fetch_add(&total, n, __ATOMIC_RELAXED);
    __atomic_fetch_add(&per_span[span < SPANS ? span : SPANS - 1], n, __ATOMIC_RELAXED);
    uint32_t i = __atomic_fetch_add(&timed, 1, __ATOMIC_RELAXED);
    if (i < TIMES)
        times_us[i] = (uint32_t)((end - began) / 1000);
    if (*is_first) {
        uint64_t seen = __atomic_load_n(&first_ns, __ATOMIC_RELAXED);
        while (end - start_ns > seen &&
               !__atomic_compare_exchange_n(&first_ns, &seen, end - start_ns, 0, __ATOMIC_RELAXED,
                                            __ATOMIC_RELAXED))
            ;
    }
    *is_first = 0;
}

static uint64_t touch(const char *at, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i += 4096)
        sum += (uint64_t)at[i];
    return sum;
}

static uint64_t read_mapped(const char *path, int *is_first) {
    static volatile uint64_t sink;
    struct stat st;
    uint64_t done = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0)
        return 0;
    uint64_t began = now();
    char *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return 0;
    for (; done < (uint64_t)st.st_size; began = now()) {
        size_t left = (size_t)st.st_size - done, n = left < block ? left : block;
        sink += touch(map + done, n);
        done += n;
        note(began, n, is_first);
    }
    munmap(map, (size_t)st.st_size);
    return done;
}

static uint64_t read_stream(const char *path, char *buffer, int *is_first) {
    FILE *f = fopen(path, "re");
    uint64_t done = 0;
    if (!f)
        return 0;
    for (uint64_t began = now(), n; (n = fread(buffer, 1, block, f)) > 0; began = now()) {
        done += n;
        note(began, n, is_first);
    }
    fclose(f);
    return done;
}

static uint64_t read_descriptor(const char *path, char *buffer, int *is_first) {
    int fd = open(path, O_RDONLY | O_CLOEXEC), by_offset = strcmp(how, "pread") == 0;
    uint64_t done = 0;
    for (ssize_t n = fd < 0 ? 0 : 1; n > 0; done += (uint64_t)n) {
        uint64_t began = now();
        n = by_offset ? pread(fd, buffer, block, (off_t)done) : read(fd, buffer, block);
        if (n <= 0)
            break;
        note(began, (uint64_t)n, is_first);
    }
    if (fd >= 0)
        close(fd);
    return done;
}

static void *read_files(void *arg) {
    char *buffer = malloc(block);
    int is_first = 1;
    (void)arg;
    for (uint64_t i; (i = __atomic_fetch_add(&next_item, 1, __ATOMIC_RELAXED)) < count;) {
        struct stat st;
        uint64_t n = strcmp(how, "mmap") == 0    ? read_mapped(paths[i], &is_first)
                     : strcmp(how, "fread") == 0 ? read_stream(paths[i], buffer, &is_first)
                                                 : read_descriptor(paths[i], buffer, &is_first);
        if (stat(paths[i], &st) != 0 || n != (uint64_t)st.st_size)
            __atomic_fetch_add(&failed, 1, __ATOMIC_RELAXED);
    }
    free(buffer);
    return NULL;
}

static void *read_blocks(void *arg) {
    char *buffer = malloc(block);
    int is_first = 1;
    (void)arg;
    for (uint64_t i; (i = __atomic_fetch_add(&next_item, 1, __ATOMIC_RELAXED)) < block_count;) {
        uint64_t began = now();
        ssize_t n = pread(descriptors[blocks[i] >> 32], buffer, block,
                          (off_t)((blocks[i] & 0xFFFFFFFF) * block));
        if (n <= 0)
            __atomic_fetch_add(&failed, 1, __ATOMIC_RELAXED);
        else
            note(began, (uint64_t)n, &is_first);
    }
    free(buffer);
    return NULL;
}

static void prepare_blocks(void) {
    uint64_t room = 0, seed = 20221;
    descriptors = malloc(count * sizeof *descriptors);
    for (uint64_t i = 0; i < count; i++) {
        struct stat st;
        descriptors[i] = open(paths[i], O_RDONLY | O_CLOEXEC);
        if (descriptors[i] < 0 || fstat(descriptors[i], &st) != 0)
            die(paths[i]);
        uint64_t n = ((uint64_t)st.st_size + block - 1) / block;
        blocks = realloc(blocks, (room += n) * sizeof *blocks);
        for (uint64_t b = 0; b < n; b++)
            blocks[block_count++] = i << 32 | b;
    }
    for (uint64_t i = block_count; i > 1; i--) {
        seed = seed * 6364136223846793005ULL + 1442695040888963407ULL; /* Knuth's MMIX */
        uint64_t j = (seed >> 33) % i, other = blocks[j];
        blocks[j] = blocks[i - 1];
        blocks[i - 1] = other;
    }
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void say(uint64_t ns) {
    uint32_t n = timed < TIMES ? timed : TIMES;
    unsigned last = SPANS;
    qsort(times_us, n, sizeof *times_us, by_size);
    while (last && !per_span[last - 1])
        last--;
    printf("{\"seconds\": %.6f, \"bytes\": %llu, \"failed\": %llu, \"first_s\": %.6f, "
           "\"p50_s\": %.6f, \"p99_s\": %.6f, \"longest_s\": %.6f, \"spans\": [",
           (double)ns / 1e9, (unsigned long long)total, (unsigned long long)failed,
           (double)first_ns / 1e9, n ? times_us[n / 2] / 1e6 : 0.0,
           n ? times_us[n - 1 - n / 100] / 1e6 : 0.0, n ? times_us[n - 1] / 1e6 : 0.0);
    for (unsigned i = 0; i < last; i++)
        printf("%s%llu", i ? ", " : "", (unsigned long long)per_span[i]);
    puts("]}");
}

int main(int argc, char **argv) {
    pthread_t thread[256];
    int threads = argc == 5 ? atoi(argv[3]) : 0;
    block = argc == 5 ? strtoul(argv[4], NULL, 10) : 0;
    if (threads < 1 || threads > 256 || block < 1) {
        fputs("usage: reader HOW LIST THREADS BLOCK\n", stderr);
        return 2;
    }
    how = argv[1];
    load(argv[2]);
    times_us = malloc(TIMES * sizeof *times_us);
    if (!times_us)
        die("memory");
    start_ns = now();
    int is_random = strcmp(how, "random") == 0;
    if (is_random)
        prepare_blocks();
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, is_random ? read_blocks : read_files, NULL) != 0)
            die("thread");
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    say(now() - start_ns);
    return 0;
}
