/* Uses a descriptor in the main thread while two other threads read from it. One of these reads
 * waits for a slow source, and the other one waits for the first read.
 *
 *   read_under_way WHAT FILE OTHER N
 *
 * A thread reads N bytes of FILE by a direct system call, which the library does not see. A second
 * thread reads the following bytes by read(2), and waits in the kernel for the first read. Then the
 * main thread does WHAT. Prints, one per line, the result of WHAT, the offset of OTHER, the results
 * of the first and the second read, and the offset of FILE. Prints on standard error how long WHAT
 * took and its processor time [us]. If a read ended before it was seen to wait, the program exits
 * with status 75 and does not do WHAT.
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
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BEHIND 5000
#define OVER 75

static int fd, other;
static size_t length;
static ssize_t got[2];
static char *data[2];
static volatile int threads[2], signals; /* threads: the IDs of the threads, 0 until they run */
static volatile int over[2];

static void must(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static void *reads_unseen(void *nothing) {
    threads[0] = (int)syscall(SYS_gettid);
    got[0] = syscall(SYS_read, fd, data[0], length);
    over[0] = 1;
    return nothing;
}

static void *reads(void *nothing) {
    threads[1] = (int)syscall(SYS_gettid);
    got[1] = read(fd, data[1], BEHIND);
    over[1] = 1;
    return nothing;
}

/* Waits until the thread is in an uninterruptible sleep (state D). If the thread's read ends first,
 * ends the program with status OVER. A read may end without such a sleep: a fill reads the same
 * file, so the bytes may already be in the page cache. */
static void await_sleep(int number) {
    char path[64], state[2] = "";
    while (!threads[number])
        usleep(1000);
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", threads[number]);
    while (state[0] != 'D') {
        FILE *stat = fopen(path, "re");
        int is_known = stat && fscanf(stat, "%*d (%*[^)]) %1s", state) == 1;
        if (over[number])
            exit(OVER);
        must(is_known, "the read's wait or end was not seen");
        fclose(stat);
        usleep(1000);
    }
}

static void handle(int number) { signals += number > 0; }

static int set_lock(void) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_SETLK, &lock);
}

/* Uses up all descriptors, so that the process can open no file, not even in /proc. */
static void use_all_numbers(void) {
    struct rlimit limit;
    must(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
    limit.rlim_cur = 40;
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
    while (dup(0) >= 0)
        ;
    must(errno == EMFILE, "dup");
}

static int do_it(const char *what) {
    if (strcmp(what, "close") == 0)
        return close(fd);
    if (strcmp(what, "close_without_proc") == 0) {
        use_all_numbers();
        return close(fd);
    }
    if (strcmp(what, "close_range") == 0)
        return close_range((unsigned)fd, (unsigned)fd, 0);
    if (strcmp(what, "dup2") == 0)
        return dup2(other, fd) == fd;
    if (strcmp(what, "dup") == 0)
        return dup(fd) > fd;
    if (strcmp(what, "cloexec") == 0)
        return fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (strcmp(what, "lock") == 0)
        return set_lock();
    if (strcmp(what, "signal") == 0) {
        kill(getpid(), SIGINT);
        while (!signals)
            usleep(1000);
        return signals;
    }
    pid_t child = fork();
    if (child == 0)
        _exit(close(fd));
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

static uint64_t sum(const char *bytes, ssize_t n) {
    uint64_t h = 14695981039346656037ULL;
    for (ssize_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)bytes[i]) * 1099511628211ULL;
    return h;
}

static long now_us(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int main(int argc, char **argv) {
    pthread_t ids[2];
    must(argc == 5, "usage");
    length = strtoul(argv[4], NULL, 10);
    for (int i = 0; i < 2; i++)
        data[i] = calloc(1, length + BEHIND);
    signal(SIGINT, handle);
    fd = open(argv[2], O_RDONLY);
    other = open(argv[3], O_RDONLY);
    must(fd >= 0 && other >= 0, "open");
    pthread_create(&ids[0], NULL, reads_unseen, NULL);
    await_sleep(0);
    pthread_create(&ids[1], NULL, reads, NULL);
    await_sleep(1);
    long began = now_us(CLOCK_MONOTONIC), worked = now_us(CLOCK_THREAD_CPUTIME_ID);
    int r = do_it(argv[1]);
    worked = now_us(CLOCK_THREAD_CPUTIME_ID) - worked;
    fprintf(stderr, "%ld %ld\n", now_us(CLOCK_MONOTONIC) - began, worked);
    for (int i = 0; i < 2; i++)
        pthread_join(ids[i], NULL);
    printf("%d\n%ld\n", r, (long)lseek(other, 0, SEEK_CUR));
    for (int i = 0; i < 2; i++)
        printf("%zd %016llx\n", got[i], (unsigned long long)sum(data[i], got[i]));
    printf("%ld\n", (long)lseek(fd, 0, SEEK_CUR));
    return 0;
}
