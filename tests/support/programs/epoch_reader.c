/* Reads files in threads, checks every byte and times every call.
 *
 *   epoch_reader WAYS CHUNK THREADS SEED:FILE...
 *
 * WAYS are words joined by commas. One word selects how files are read: read, readv, pread or
 * preadv (from the beginning to the end), random (pread of chunks in a random order) or spread (the
 * threads share one file, chunk by chunk; no second FILE is allowed). These words may be added:
 *   alarm      a signal arrives every 2 ms, with SA_RESTART;   alarm0: without SA_RESTART
 *   full       no descriptor is free after the files are opened
 *   late       each thread has opened its first file before any file is read
 *
 * If there are at least as many files as threads, each file is read once. If there are fewer, each
 * thread reads one file, and some files are read several times. Word i of a file is word_of(seed,
 * i), see known_bytes.h. The program prints its counts as JSON, among them:
 *   wrong: wrong bytes;  short: reads that returned a number of bytes other than expected;
 *   errors: failed calls;  errno: the error number of the last failed call
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include "known_bytes.h"

#define MOST_THREADS 512

static struct file {
    uint64_t seed;
    const char *path;
} * files;
static int file_count, job_count, threads;
static uint64_t chunk;
static const char *ways;
static pthread_barrier_t all_open;

static uint64_t wrong, is_short, errors, bytes, calls, longest_ns, alarms;
static int last_error;

static void add(uint64_t *to, uint64_t n) { __atomic_fetch_add(to, n, __ATOMIC_RELAXED); }

static int is_way(const char *word) {
    size_t n = strlen(word);
    for (const char *at = ways; (at = strstr(at, word)); at += n)
        if ((at == ways || at[-1] == ',') && (at[n] == 0 || at[n] == ','))
            return 1;
    return 0;
}

/* --- reading -----------------------------------------------------------------------------------
 */

static ssize_t call(int fd, char *data, uint64_t n, uint64_t at) {
    struct iovec parts[2] = {{data, n / 3}, {data + n / 3, n - n / 3}};
    if (is_way("read"))
        return read(fd, data, n);
    if (is_way("readv"))
        return readv(fd, parts, 2);
    if (is_way("preadv"))
        return preadv(fd, parts, 2, (off_t)at);
    return pread(fd, data, n, (off_t)at);
}

static int read_part(uint64_t seed, int fd, char *data, uint64_t at, uint64_t size) {
    uint64_t n = size - at < chunk ? size - at : chunk, start = now_ns();
    ssize_t r = call(fd, data, chunk, at);
    raise_to(&longest_ns, now_ns() - start);
    add(&calls, 1);
    if (r < 0) {
        last_error = errno;
        add(&errors, 1);
        return -1;
    }
    if ((uint64_t)r != n)
        add(&is_short, 1);
    add(&wrong, count_wrong(seed, data, at, (uint64_t)r));
    add(&bytes, (uint64_t)r);
    return (uint64_t)r == n ? 0 : -1;
}

static void read_file(uint64_t seed, int fd, char *data, uint64_t first, uint64_t step) {
    struct stat st;
    if (fstat(fd, &st) != 0) {
        add(&errors, 1);
        return;
    }
    uint64_t size = (uint64_t)st.st_size, chunks = (size + chunk - 1) / chunk;
    /* `round` is a power of two. In `round` steps of the generator below, state % round takes each
     * value from 0 to round - 1 once. */
    uint64_t round = 1, state = seed * 7919;
    while (round < chunks)
        round *= 2;
    if (is_way("random")) {
        for (uint64_t i = 0; i < round; i++) {
            state = state * 5 + 12345;
            if (state % round < chunks &&
                read_part(seed, fd, data, state % round * chunk, size) != 0)
                return;
        }
        return;
    }
    for (uint64_t i = first; i < chunks; i += step)
        if (read_part(seed, fd, data, i * chunk, size) != 0)
            return;
}

static int open_file(int job) {
    int fd = open(files[job % file_count].path, O_RDONLY);
    if (fd < 0) {
        last_error = errno;
        add(&errors, 1);
    }
    return fd;
}

static void take_all_numbers(void) {
    int fd = open("/dev/null", O_RDONLY);
    struct rlimit most = {(rlim_t)fd, (rlim_t)fd};
    close(fd);
    setrlimit(RLIMIT_NOFILE, &most);
}

static void *work(void *arg) {
    int number = (int)(intptr_t)arg, fd = -1, spread = is_way("spread");
    char *data = malloc(chunk);
    if (!data)
        abort();
    if (is_way("late") || is_way("full")) {
        fd = open_file(number);
        if (pthread_barrier_wait(&all_open) == PTHREAD_BARRIER_SERIAL_THREAD && is_way("full"))
            take_all_numbers();
        pthread_barrier_wait(&all_open);
    }
    for (int job = number; job < job_count; job += threads) {
        if (fd < 0)
            fd = open_file(job);
        if (fd >= 0) {
            read_file(files[job % file_count].seed, fd, data, spread ? (uint64_t)number : 0,
                      spread ? (uint64_t)threads : 1);
            close(fd);
        }
        fd = -1;
    }
    free(data);
    return NULL;
}

static void on_alarm(int signal_number) {
    (void)signal_number;
    add(&alarms, 1);
}

static void start_alarms(int flags) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = flags};
    struct itimerval every = {{0, 2000}, {0, 2000}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
}

int main(int argc, char **argv) {
    static pthread_t thread[MOST_THREADS];
    if (argc < 5)
        return 2;
    ways = argv[1];
    chunk = strtoull(argv[2], NULL, 10);
    threads = atoi(argv[3]);
    file_count = argc - 4;
    job_count = file_count > threads ? file_count : threads;
    files = calloc((size_t)file_count, sizeof *files);
    if (!files || !chunk || threads < 1 || threads > MOST_THREADS ||
        (is_way("spread") && file_count > 1))
        return 2;
    for (int i = 0; i < file_count; i++) {
        char *end;
        files[i].seed = strtoull(argv[4 + i], &end, 10);
        files[i].path = end + 1;
    }
    pthread_barrier_init(&all_open, NULL, (unsigned)threads);
    if (is_way("alarm") || is_way("alarm0"))
        start_alarms(is_way("alarm") ? SA_RESTART : 0);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, work, (void *)(intptr_t)i) != 0)
            abort();
    sigset_t all; /* This thread blocks all signals, so that the reading threads get them. */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    printf("{\"bytes\": %llu, \"calls\": %llu, \"wrong\": %llu, \"short\": %llu, \"errors\": %llu, "
           "\"errno\": %d, \"alarms\": %llu, \"longest_s\": %.4f}\n",
           (unsigned long long)bytes, (unsigned long long)calls, (unsigned long long)wrong,
           (unsigned long long)is_short, (unsigned long long)errors, last_error,
           (unsigned long long)alarms, (double)longest_ns / 1e9);
    return 0;
}
