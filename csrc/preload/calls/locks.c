/* Takes locks on the source's file, never on a copy.
 *
 * Programs without the library use the source's file, and would not notice a lock on a copy. So the
 * lock on a copy's descriptor is taken on its backing descriptor, which refers to the source's
 * file. */
#include "preload/calls/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "preload/descriptors/locked_files.h"
#include "preload/process/calls.h"
#include "preload/promotion/backing.h"
#include "preload/promotion/promote.h"

static int no_lock(void) {
    errno = ENOLCK;
    return -1;
}

/* Call this if the program requests a lock on `fd`. Stores in *on the descriptor on which the
 * kernel must take the lock. Returns 0, with errno set, if no lock can be taken. */
static int find_descriptor(int fd, int *on) {
    int backing = monarch_settle(fd) ? monarch_backing_fd(fd) : -2;
    if (backing == -2) {
        no_lock();
        return 0;
    }
    *on = backing >= 0 ? backing : fd;
    if (monarch_keep_locks(*on))
        return 1;
    no_lock();
    return 0;
}

/* Call this after a lock call. Returns r, the result of the call. on: the descriptor that
 * find_descriptor has chosen for `fd`. If the lock was granted, checks whether the source's file
 * has changed. If so, later reads go to the source, and return what the previous holder of the lock
 * has written. */
static int granted(int r, int fd, int on) {
    int old_errno = errno;
    if (r == 0 && on != fd)
        monarch_backing_compare(fd);
    else if (r == 0)
        monarch_compare_source(fd);
    errno = old_errno;
    return r;
}

PUBLIC int flock(int fd, int operation) {
    int on;
    return find_descriptor(fd, &on) ? granted(REAL(flock)(on, operation), fd, on) : -1;
}

/* Returns whether a lock call must be repeated because another thread has called
 * monarch_close_unseen meanwhile. If the lock was granted, that thread may have dropped it again.
 * If the lock was refused because of another lock, that thread may have held the other lock for a
 * moment (locked_files.h). r: the result of the lock call, whose error is in errno. closings: the
 * value that monarch_await_closings has stored before the lock call. */
static int is_doubtful(int r, uint32_t closings) {
    return (r == 0 || errno == EAGAIN || errno == EACCES) && monarch_has_closed_since(closings);
}

/* Arguments of a call of lockf, or of fcntl with a lock command. */
struct lock_call {
    int is_lockf, command;
    off_t length;
    void *arg;
};

static int call(int on, const struct lock_call *c) {
    return c->is_lockf ? REAL(lockf)(on, c->command, c->length)
                       : REAL(fcntl)(on, c->command, c->arg);
}

/* Makes the lock call `c` on the source's file. changes: whether the call may change the process's
 * POSIX locks. If so, the call is repeated while its result is doubtful (is_doubtful), up to
 * MONARCH_LOCK_ROUNDS times. If the last result is still doubtful, the function fails. After a
 * granted lock, errno is then ENOLCK, because the lock may be lost again. After a refused lock,
 * errno is the kernel's. */
static int lock(int fd, int changes, const struct lock_call *c) {
    int on, r, old_errno = errno, rounds = 0;
    uint32_t closings;
    if (!find_descriptor(fd, &on))
        return -1;
    if (on != fd && changes)
        monarch_backing_has_posix_locks();
    do {
        int can_try = (!changes && c->command != F_GETLK) || monarch_await_closings(&closings);
        if (changes && !can_try)
            return no_lock();
        r = call(on, c);
    } while (changes && is_doubtful(r, closings) && ++rounds < MONARCH_LOCK_ROUNDS);
    if (r == 0 && rounds == MONARCH_LOCK_ROUNDS)
        return no_lock();
    if (r == 0)
        errno = old_errno;
    return granted(r, fd, on);
}

PUBLIC int lockf(int fd, int command, off_t length) {
    return lock(fd, 1, &(struct lock_call){1, command, length, NULL});
}

int monarch_is_lock(int command) {
    return command == F_GETLK || command == F_SETLK || command == F_SETLKW ||
           command == F_OFD_GETLK || command == F_OFD_SETLK || command == F_OFD_SETLKW ||
           command == F_GETLEASE;
}

int monarch_lock(int fd, int command, void *arg) {
    int changes = command == F_SETLK || command == F_SETLKW;
    return lock(fd, changes, &(struct lock_call){0, command, 0, arg});
}

TWIN(lockf64, lockf)
