/* Locks: always on the source's file, so that they exclude whoever reads or writes it, under the
 * library or not. A copy's descriptor takes them through its companion. */
#define _GNU_SOURCE
#include "locks.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "calls.h"
#include "companion.h"
#include "posix_locks.h"
#include "promote.h"

/* In `on`, the descriptor that a lock of `fd` is to be taken on; 0 with errno if there can be none.
 */
static int find_descriptor(int fd, int *on) {
    int behind = monarch_companion(fd);
    if (behind == -2) {
        errno = ENOLCK;
        return 0;
    }
    *on = behind >= 0 ? behind : fd;
    monarch_keep_locks(*on);
    return 1;
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
    int on;
    return find_descriptor(fd, &on) ? granted(REAL(flock)(on, operation), fd, on) : -1;
}

PUBLIC int lockf(int fd, int command, off_t length) {
    uint32_t closings;
    int on, r;
    if (!find_descriptor(fd, &on))
        return -1;
    if (on != fd)
        monarch_companion_has_posix_locks();
    do {
        closings = monarch_closings();
        r = REAL(lockf)(on, command, length);
    } while (r == 0 && monarch_has_closed_since(closings));
    return granted(r, fd, on);
}

int monarch_is_lock(int command) {
    return command == F_GETLK || command == F_SETLK || command == F_SETLKW ||
           command == F_OFD_GETLK || command == F_OFD_SETLK || command == F_OFD_SETLKW ||
           command == F_GETLEASE;
}

int monarch_lock(int fd, int command, void *arg) {
    int on, r, is_posix = command == F_SETLK || command == F_SETLKW;
    uint32_t closings;
    if (!find_descriptor(fd, &on))
        return -1;
    if (on != fd && is_posix)
        monarch_companion_has_posix_locks();
    do {
        closings = monarch_closings();
        r = REAL(fcntl)(on, command, arg);
    } while (r == 0 && is_posix && monarch_has_closed_since(closings));
    return granted(r, fd, on);
}

TWINS_OF_LOCKS(TWIN)
