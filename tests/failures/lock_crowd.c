/* Changes a POSIX lock in one thread while another thread locks and closes descriptors. When a
 * program locks a copy, the library opens a descriptor of the source's file, and takes the lock on
 * this file instead. It closes this descriptor when the program closes the copy.
 *
 *   lock_crowd fcntl|lockf FILE OTHER
 *
 * The first thread makes one call on FILE: it takes a lock with fcntl, or releases one with lockf.
 * Within that call, the library makes several fcntl system calls. Before each of them, the second
 * thread does a round: it opens OTHER, locks it and closes it. It does at most MOST rounds.
 *
 * Prints three lines: the result of the first thread's call; whether the second thread has done all
 * its MOST rounds (1 or 0); and the result of the first thread's call when it is repeated without
 * the second thread.
 * */
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
