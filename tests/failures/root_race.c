/* Changes the process's root while another thread checks whether the source is visible in the root.
 *
 *   root_race FILE ROOT NTH
 *
 * A thread opens FILE, and is held before its NTH newfstatat, if there is one. Meanwhile another
 * thread calls chroot(ROOT). Prints whether the first thread was held, and the size and the first
 * bytes of FILE after the chroot.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hold.h"

#define FIRST 5

static const char *file, *root;

static void opens(void) {
    int fd = open(file, O_RDONLY);
    must(fd >= 0 && close(fd) == 0, "open");
}

static void changes_root(void) { must(chroot(root) == 0 && chdir("/") == 0, "chroot"); }

int main(int argc, char **argv) {
    unsigned char data[FIRST];
    struct stat st;
    must(argc == 4, "usage");
    file = argv[1];
    root = argv[2];
    int is_held = hold(SYS_newfstatat, -1, atoi(argv[3]), opens, changes_root);
    int fd = open(file, O_RDONLY);
    must(fd >= 0 && read(fd, data, FIRST) == FIRST, "read");
    must(stat(file, &st) == 0, "stat");
    printf("%d\n%ld ", is_held, (long)st.st_size);
    for (int i = 0; i < FIRST; i++)
        printf("%02x", data[i]);
    putchar('\n');
    return 0;
}
