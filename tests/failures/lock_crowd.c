/* Changes a POSIX lock while the library again and again closes descriptors of its own, which it
 * opens to lock the source's file when a program locks a copy.
 *
 *   lock_crowd fcntl|lockf FILE OTHER
 *
 * A thread takes a lock of FILE with fcntl, or releases one with lockf. Before each fcntl system
 * call that this causes, another thread locks and closes a new descriptor of OTHER, at most MOST
 * times in all. Prints the result of the first thread's call, whether the other thread did this
 * MOST times, and the result of the same call when nothing is closed any more.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hold.h"

#define MOST 500

static int fd, by_lockf, closings;
static const char *other, *result;

static const char *change(void) {
    struct flock whole = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    int r = by_lockf ? lockf(fd, F_ULOCK, 0) : fcntl(fd, F_SETLK, &whole);
    return r == 0 ? "done" : strerrorname_np(errno);
}

static void changes(void) { result = change(); }

static void closes(void) {
    if (closings == MOST)
        return;
    int fresh = open(other, O_RDONLY);
    must(fresh >= 0 && flock(fresh, LOCK_SH) == 0 && close(fresh) == 0, "flock");
    closings++;
}

int main(int argc, char **argv) {
    must(argc == 4, "usage");
    by_lockf = strcmp(argv[1], "lockf") == 0;
    other = argv[3];
    must((fd = open(argv[2], O_RDONLY)) >= 0, "open");
    hold_each(SYS_fcntl, -1, changes, closes);
    printf("%s\n%d\n%s\n", result, closings == MOST, change());
    return 0;
}
