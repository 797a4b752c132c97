/* Locks and leases: always on the source's file, so that they exclude whoever reads or writes it,
 * under the library or not. A copy's descriptor takes them through its companion. */
#define _GNU_SOURCE
#include "locks.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "calls.h"
#include "companion.h"
#include "promote.h"

/* The descriptor that a lock of `fd` is to be taken on; -1 with errno if there can be none. */
static int descriptor_for(int fd) {
    int behind = monarch_companion(fd);
    if (behind == -2) {
        errno = ENOLCK;
        return -1;
    }
    if (behind >= 0)
        return behind;
    monarch_keep_locks(fd);
    return fd;
}

static int granted(int r, int fd, int on) {
    if (r == 0 && on != fd) {
        int old_errno = errno;
        monarch_companion_compare(fd);
        errno = old_errno;
    }
    return r;
}

PUBLIC int flock(int fd, int operation) {
    int on = descriptor_for(fd);
    return on < 0 ? -1 : granted(REAL(flock)(on, operation), fd, on);
}

PUBLIC int lockf(int fd, int command, off_t length) {
    int on = descriptor_for(fd);
    if (on != fd)
        monarch_companion_has_posix_locks();
    return on < 0 ? -1 : granted(REAL(lockf)(on, command, length), fd, on);
}

int monarch_is_lock(int command) {
    return command == F_GETLK || command == F_SETLK || command == F_SETLKW ||
           command == F_OFD_GETLK || command == F_OFD_SETLK || command == F_OFD_SETLKW ||
           command == F_SETLEASE || command == F_GETLEASE;
}

int monarch_lock(int fd, int command, void *arg) {
    int on = descriptor_for(fd);
    if (on != fd && (command == F_SETLK || command == F_SETLKW))
        monarch_companion_has_posix_locks();
    return on < 0 ? -1 : granted(REAL(fcntl)(on, command, arg), fd, on);
}

TWINS_OF_LOCKS(TWIN)
