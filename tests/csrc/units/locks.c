/* In this unit, lock calls do not reach the kernel. The steps that the library takes are recorded,
 * and the test sets what each step returns. */
#include "preload/descriptors/locked_files.h"
#include "preload/promotion/backing.h"
#include "preload/promotion/promote.h"
#include "steps.h"

static int is_scripted;
static struct {
    int settles, backing, keeps, awaits,
        doubts;        /* doubts: number of calls with a doubtful result */
    int result, error; /* of the lock call */
} answer;
static int settle(int fd) { return is_scripted ? answer.settles : monarch_settle(fd); }
static int backing_fd(int fd) { return is_scripted ? answer.backing : monarch_backing_fd(fd); }
static int keep_locks(int fd) {
    if (!is_scripted)
        return monarch_keep_locks(fd);
    step("keep %d", fd);
    return answer.keeps;
}
static void backing_compare(int fd) {
    if (is_scripted)
        step("compare behind %d", fd);
    else
        monarch_backing_compare(fd);
}
static void compare_source(int fd) {
    if (is_scripted)
        step("compare %d", fd);
    else
        monarch_compare_source(fd);
}
static void have_posix_locks(void) {
    if (is_scripted)
        step("posix");
    else
        monarch_backing_has_posix_locks();
}
static int await_closings(uint32_t *closings) {
    if (!is_scripted)
        return monarch_await_closings(closings);
    step("await");
    *closings = 7;
    return answer.awaits;
}
static int has_closed_since(uint32_t closings) {
    if (!is_scripted)
        return monarch_has_closed_since(closings);
    return closings != 7 || answer.doubts-- > 0;
}
#define monarch_settle(fd) settle(fd)
#define monarch_backing_fd(fd) backing_fd(fd)
#define monarch_keep_locks(fd) keep_locks(fd)
#define monarch_backing_compare(fd) backing_compare(fd)
#define monarch_compare_source(fd) compare_source(fd)
#define monarch_backing_has_posix_locks() have_posix_locks()
#define monarch_await_closings(closings) await_closings(closings)
#define monarch_has_closed_since(closings) has_closed_since(closings)
#include "preload/calls/locks.c"

#include "made.h"

static int answered(void) {
    errno = answer.result < 0 ? answer.error : EIO;
    return answer.result;
}
static int original_flock(int fd, int operation) {
    step("flock %d %d", fd, operation);
    return answered();
}
static int original_lockf(int fd, int command, off_t length) {
    step("lockf %d %d %d", fd, command, (int)length);
    return answered();
}
static int original_fcntl(int fd, int command, void *arg) {
    step("fcntl %d %d%s", fd, command, arg == &answer ? "" : " with another argument");
    return answered();
}

EXPORT void locks_answer(int settles, int backing, int keeps, int awaits, int doubts, int result,
                         int error) {
    answer.settles = settles;
    answer.backing = backing;
    answer.keeps = keeps;
    answer.awaits = awaits;
    answer.doubts = doubts;
    answer.result = result;
    answer.error = error;
}
/* Makes a lock call on descriptor 5. kind 0: flock; 1: lockf; 2: fcntl with the command. Returns
 * what the call returns, or -errno, or -9999 if the call has succeeded but has changed errno. */
EXPORT int locks_call(int kind, int command) {
    steps[0] = 0;
    is_scripted = 1;
    monarch_real.flock = (void *)original_flock;
    monarch_real.lockf = (void *)original_lockf;
    monarch_real.fcntl = (void *)original_fcntl;
    errno = 54321;
    int r = kind == 0   ? flock(5, command)
            : kind == 1 ? lockf(5, command, 9)
                        : monarch_lock(5, command, &answer);
    int error = errno;
    monarch_real.flock = monarch_real.lockf = monarch_real.fcntl = NULL;
    is_scripted = 0;
    return r < 0 ? -error : error == 54321 || kind == 0 ? r : -9999;
}
EXPORT const char *locks_steps(void) { return steps; }
EXPORT int locks_is_lock(int command) { return monarch_is_lock(command); }
