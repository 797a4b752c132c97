/* Changes a POSIX lock in one thread while the library closes a descriptor of the same file in
 * another thread. When a program locks a descriptor of a copy, the library opens the source's file
 * and takes the lock on this file. The open returns a low descriptor number. The library duplicates
 * this descriptor to a high number, and then closes the low number.
 *
 *   lock_race lock|unlock|convert|wait FILE
 *
 * The program has two descriptors of FILE. One thread locks the second descriptor by flock. If the
 * library closes a descriptor during this call, the program pauses the thread just before the
 * close. Meanwhile another thread takes, releases or converts a POSIX lock through the first
 * descriptor, or gets a POSIX lock for which it was already waiting. Prints whether there was a
 * close, and which ranges a child finds locked.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hold.h"

static int fds[2];
static const char *what;

static int change(int command, short type, off_t start) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = 10};
    must(fcntl(fds[0], command, &lock) == 0, "fcntl");
    return lock.l_type;
}

static void locks_second(void) { must(flock(fds[1], LOCK_SH) == 0, "flock"); }

static void changes(void) {
    if (strcmp(what, "unlock") != 0)
        change(F_SETLKW, F_RDLCK, 100);
    if (strcmp(what, "lock") != 0)
        change(F_SETLK, F_UNLCK, 0);
}

/* --- a lock for which the program waits ------------------------------------------------------- */

static int into_writer;

/* The main function of a separate program, without the library: it locks the file from byte 100 on,
 * and keeps the lock until it gets a byte. */
static int write_lock(const char *path) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 100};
    int fd = open(path, O_RDWR);
    char byte;
    must(fd >= 0 && fcntl(fd, F_SETLK, &lock) == 0, "the writer's lock");
    must(write(1, "", 1) == 1 && read(0, &byte, 1) == 1, "the writer");
    return 0;
}

static void start_writer(char **argv) {
    int in[2], out[2];
    char byte;
    must(pipe(in) == 0 && pipe(out) == 0, "pipe");
    if (fork() == 0) {
        unsetenv("LD_PRELOAD");
        dup2(in[0], 0);
        dup2(out[1], 1);
        execl("/proc/self/exe", argv[0], "writer", argv[2], NULL);
        _exit(1);
    }
    into_writer = in[1];
    must(read(out[0], &byte, 1) == 1, "the writer");
}

/* Returns whether a thread of this process waits for a lock. While a thread of process 1234 waits,
 * /proc/locks has the line "1: -> POSIX  ADVISORY  READ 1234 ...". */
static int is_waiting(void) {
    char line[256], mine[32];
    int found = 0;
    FILE *locks = fopen("/proc/locks", "re");
    must(locks != NULL, "/proc/locks");
    snprintf(mine, sizeof mine, " %d ", (int)getpid());
    while (fgets(line, sizeof line, locks))
        found |= strstr(line, "->") && strstr(line, mine);
    fclose(locks);
    return found;
}

static void *waits(void *nothing) {
    change(F_SETLKW, F_RDLCK, 100);
    return nothing;
}

static void is_granted(void) {
    must(write(into_writer, "", 1) == 1, "the writer");
    while (is_waiting())
        usleep(1000);
}

int main(int argc, char **argv) {
    pthread_t waiter;
    must(argc == 3, "usage");
    what = argv[1];
    if (strcmp(what, "writer") == 0)
        return write_lock(argv[2]);
    int has_waited = strcmp(what, "wait") == 0;
    for (int i = 0; i < 2; i++)
        must((fds[i] = open(argv[2], O_RDONLY)) >= 0, "open");
    /* When this lock is taken, the library opens the source's file for fds[0]. Later locks through
     * fds[0] use that open file. So the library closes no descriptor for them, and only the flock
     * of fds[1] causes closes. */
    must(flock(fds[0], LOCK_SH) == 0, "flock");
    if (has_waited) {
        start_writer(argv);
        must(pthread_create(&waiter, NULL, waits, NULL) == 0, "pthread_create");
        while (!is_waiting())
            usleep(1000);
    } else if (strcmp(what, "lock") != 0) {
        change(F_SETLK, F_RDLCK, 0);
    }
    /* The library opens and closes two descriptors, one after the other: first one for a path, then
     * one for the file. Both get the lowest free number. So the second close of this number is the
     * close of the file's descriptor. */
    int lowest = dup(0);
    close(lowest);
    printf("%d\n", hold(SYS_close, lowest, 2, locks_second, has_waited ? is_granted : changes));
    fflush(stdout);
    if (has_waited)
        pthread_join(waiter, NULL);
    if (fork() == 0) {
        for (off_t at = 0; at <= 100; at += 100)
            printf("%ld %s\n", (long)at,
                   change(F_GETLK, F_WRLCK, at) == F_UNLCK ? "free" : "locked");
        fflush(stdout);
        _exit(0);
    }
    for (int status; wait(&status) > 0;)
        must(status == 0, "child");
    return 0;
}
