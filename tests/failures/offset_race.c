/* Replaces the file of a descriptor while a read of the descriptor is about to move the offset.
 *
 *   offset_race read|readv FILE OTHER AT N
 *
 * A thread reads N bytes of FILE at the descriptor's offset. If this thread calls lseek, it is held
 * before the call. Meanwhile another thread puts OTHER, whose offset is AT, on the descriptor's
 * number by dup2. Prints whether lseek was called, the offset of OTHER, how many bytes were read,
 * and these bytes.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "hold.h"

static int fd, other, by_parts;
static size_t length;
static char *data;
static ssize_t got;

static void reads(void) {
    struct iovec parts[2] = {{data, length / 3}, {data + length / 3, length - length / 3}};
    got = by_parts ? readv(fd, parts, 2) : read(fd, data, length);
}

static void replaces(void) { must(dup2(other, fd) == fd, "dup2"); }

int main(int argc, char **argv) {
    must(argc == 6, "usage");
    by_parts = strcmp(argv[1], "readv") == 0;
    fd = open(argv[2], O_RDONLY);
    other = open(argv[3], O_RDONLY);
    must(fd >= 0 && other >= 0 && lseek(other, atol(argv[4]), SEEK_SET) >= 0, "open");
    length = strtoul(argv[5], NULL, 10);
    data = malloc(length);
    int is_held = hold(SYS_lseek, fd, 1, reads, replaces);
    printf("%d %ld %zd\n", is_held, (long)lseek(other, 0, SEEK_CUR), got);
    fflush(stdout);
    return got >= 0 && write(1, data, (size_t)got) == got ? 0 : 1;
}
