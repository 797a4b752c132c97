/* Drops the capability to read all files while another thread checks for this capability.
 *
 *   rights_race FILE
 *
 * FILE has a copy. A thread opens FILE. Once a second, an open checks the process's rights and then
 * whether there is a switch file. The thread is held between these two checks. Meanwhile another
 * thread drops all capabilities. Prints whether the thread was held, and the path of the file that
 * the next open has opened.
 */
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "hold.h"

int capset(void *header, const void *data);

static const char *file;

static void opens(void) { must(close(open(file, O_RDONLY)) == 0, "open"); }

static void drops(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2];
    memset(none, 0, sizeof none);
    must(capset(&header, none) == 0, "capset");
}

static long second(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return t.tv_sec;
}

int main(int argc, char **argv) {
    char link[32], name[4096] = "";
    must(argc == 2, "usage");
    file = argv[1];
    opens();
    for (long now = second(); second() == now;)
        usleep(1000);
    /* For its checks, the open makes three newfstatat calls: for the session, for the user
     * namespace, and for a switch file. */
    int is_held = hold(SYS_newfstatat, -1, 3, opens, drops), fd = open(file, O_RDONLY);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    must(syscall(SYS_readlinkat, AT_FDCWD, link, name, sizeof name - 1) > 0, "readlink");
    printf("%d %s\n", is_held, name);
    return 0;
}
