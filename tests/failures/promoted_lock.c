/* Locks a file through a descriptor while another thread promotes the descriptor.
 *
 *   promoted_lock flock|fcntl FILE
 *
 * Opens FILE, prints "open", and waits for a line, which says that FILE has a copy. Then a thread
 * reads by pread, which may promote the descriptor. If so, the thread is held just before it puts
 * the copy on the descriptor's number. Meanwhile another thread takes a shared lock through the
 * descriptor. Prints whether the reader was held, and "locked" if another program finds the lock.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hold.h"

static int fd, by_flock;

static int lock(int of, short type, int operation) {
    struct flock all = {.l_type = type, .l_whence = SEEK_SET};
    return by_flock ? flock(of, operation) : fcntl(of, F_SETLK, &all);
}

static void reads(void) {
    char data[100];
    must(pread(fd, data, sizeof data, 0) == sizeof data, "pread");
}

static void locks(void) { must(lock(fd, F_RDLCK, LOCK_SH) == 0, "lock"); }

/* The main function of a separate program, without the library. */
static int look(const char *path) {
    int is_free = lock(open(path, O_RDWR), F_WRLCK, LOCK_EX | LOCK_NB) == 0;
    puts(is_free ? "free" : "locked");
    return 0;
}

int main(int argc, char **argv) {
    must(argc >= 3, "usage");
    by_flock = strcmp(argv[1], "flock") == 0;
    if (argc == 4)
        return look(argv[2]);
    fd = open(argv[2], O_RDONLY);
    must(fd >= 0, "open");
    puts("open");
    fflush(stdout);
    getchar();
    printf("%d ", hold(SYS_dup3, -1, 1, reads, locks));
    fflush(stdout);
    if (fork() == 0) {
        unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", argv[0], argv[1], argv[2], "look", NULL);
        _exit(1);
    }
    wait(NULL);
    return 0;
}
