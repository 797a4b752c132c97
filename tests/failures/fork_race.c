/* Forks while another thread is reading from a copy.
 *
 *   fork_race pread|read FILE
 *
 * Opens FILE, prints "open", and waits for a line, which says that FILE has a copy. Then a thread
 * reads FILE. Just before its system call on the copy, this thread is held, and another thread
 * forks. Prints whether the reader was held, and how many more descriptors the child has than the
 * program.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hold.h"

/* The number of descriptors that hold() opens: for each of its two threads, two pipes and the
 * listener of a filter. */
#define OF_HOLD 10

static int fd, before, status = -1;
static const char *call;
static char data[100];

static int count(void) {
    int n = 0;
    for (int number = 0; number < 1000; number++)
        n += fcntl(number, F_GETFD) >= 0;
    return n;
}

static void reads(void) {
    ssize_t n = strcmp(call, "read") ? pread(fd, data, 100, 0) : read(fd, data, 100);
    must(n == 100, call);
}

static void forks(void) {
    errno = 1234;
    pid_t child = fork();
    must(errno == 1234, "errno");
    if (child == 0)
        _exit(count() - before);
    must(waitpid(child, &status, 0) == child, "waitpid");
}

int main(int argc, char **argv) {
    must(argc == 3, "usage");
    call = argv[1];
    fd = open(argv[2], O_RDONLY);
    must(fd >= 0, "open");
    must(lseek(fd, 0, SEEK_SET) == 0, "lseek"); /* an lseek prevents the promotion of fd */
    puts("open");
    fflush(stdout);
    getchar();
    before = count() + OF_HOLD;
    int is_held = hold(SYS_pread64, -1, 1, reads, forks);
    printf("%d %d\n", is_held, WEXITSTATUS(status));
    return 0;
}
