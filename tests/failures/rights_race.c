/* Gives up the right to read everything while another thread looks whether the process has it.
 *
 *   rights_race FILE
 *
 * FILE has a copy. A thread opens it, and is held in its look, once a second, between the rights
 * and the switch files; meanwhile another drops its capabilities. Writes whether there was such a
 * look, and the name that the kernel has for what the next open gives.
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
    /* Is the session there? Is this the daemon's name space of users? Is there a switch file? */
    int is_held = hold(SYS_newfstatat, -1, 3, opens, drops), fd = open(file, O_RDONLY);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    must(syscall(SYS_readlinkat, AT_FDCWD, link, name, sizeof name - 1) > 0, "readlink");
    printf("%d %s\n", is_held, name);
    return 0;
}
