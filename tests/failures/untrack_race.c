/* Opens another file on a descriptor's number while a read notices that the old file was closed.
 *
 *   untrack_race FILE OTHER
 *
 * FILE is closed by a direct system call, which the library does not see. A thread then reads from
 * the descriptor's number by pread. If the library calls statx on the descriptor, the thread is
 * held before this call. Meanwhile another thread opens OTHER on the number. Prints whether statx
 * was called, waits for a line, reads from the number, and prints the path of the file that is open
 * on this number.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hold.h"

static int fd;
static const char *other;
static char data[100];

static void reads(void) { must(pread(fd, data, sizeof data, 0) == sizeof data, "pread"); }

static void opens(void) {
    int last;
    do
        last = open(other, O_RDONLY);
    while (last >= 0 && last < fd);
    must(last == fd, "open");
}

int main(int argc, char **argv) {
    char link[32], name[4096] = "";
    must(argc == 3, "usage");
    other = argv[2];
    /* hold() opens descriptors on the lowest free numbers, and must not use the number `fd`. So
     * three lower numbers are in use until `fd` is open, and are then freed for hold(). */
    int low[] = {dup(0), dup(0), dup(0)};
    fd = open(argv[1], O_RDONLY);
    for (int i = 0; i < 3; i++)
        close(low[i]);
    must(fd >= 0 && syscall(SYS_close, fd) == 0, "open");
    printf("%d\n", hold(SYS_statx, fd, 1, reads, opens));
    fflush(stdout);
    getchar();
    reads();
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    must(syscall(SYS_readlinkat, AT_FDCWD, link, name, sizeof name - 1) > 0, "readlink");
    puts(name);
    return 0;
}
