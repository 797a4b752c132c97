/* The functions that the daemon's engine calls in place of libc's (OF_DAEMON in building.py). */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "daemon.h"
#include "futex.h"
#include "scheduler.h"

#define MOST_DESCRIPTORS 256

#define CALL(type, name, arguments) \
    type daemon_##name arguments;   \
    type daemon_##name arguments

/* For each descriptor number, the kind of file that the daemon has open there: none, a file that it
 * opened itself, or a file that a program has handed over. */
enum { NOTHING, OWN, HANDED };
static unsigned char has[MOST_DESCRIPTORS];

void (*when_source_is_opened)(const char *name);
uint64_t most_descriptors = 1024;
unsigned most_handed = MOST_DESCRIPTORS;

static unsigned count(unsigned from) {
    unsigned n = 0;
    for (unsigned fd = 0; fd < MOST_DESCRIPTORS; fd++)
        n += has[fd] >= from;
    return n;
}

unsigned handed_descriptors(void) { return count(HANDED); }
unsigned open_daemon_descriptors(void) { return count(OWN); }

static void note_open(int fd, unsigned char what) {
    if (fd < 0)
        return;
    EXPECT(fd < MOST_DESCRIPTORS && has[fd] == NOTHING);
    has[fd] = what;
}

static int is_its(int fd) { return fd >= 0 && fd < MOST_DESCRIPTORS && has[fd] != NOTHING; }

static uint64_t time_of(const struct timespec *t) {
    return (uint64_t)t->tv_sec * 1000000000 + (uint64_t)t->tv_nsec;
}

static unsigned opens;

unsigned source_opens(void) { return opens; }

static void note_source(const char *name) {
    opens++;
    note_met(OPENED_AGAIN);
    if (when_source_is_opened)
        when_source_is_opened(name);
}

/* --- files --------------------------------------------------------------------------------------
 */

/* restore() has made an empty file for each copy, so that the copy has the same inode number in
 * every run. Therefore the flags that would create the file are left out. */
CALL(int, openat, (int dir, const char *path, int flags, ...)) {
    int is_copy = flags & O_CREAT;
    int fd = (int)syscall(SYS_openat, dir, path, flags & ~(O_CREAT | O_EXCL), 0);
    note_open(fd, OWN);
    if (!is_copy)
        note_source(path);
    step();
    return fd;
}
CALL(int, close, (int fd)) {
    EXPECT(is_its(fd));
    EXPECT(has[fd] != HANDED || !locks_held());
    has[fd] = NOTHING;
    int r = (int)syscall(SYS_close, fd);
    step();
    return r;
}
CALL(int, dup3, (int fd, int to, int flags)) {
    EXPECT(is_its(fd) && is_its(to));
    EXPECT(has[to] != HANDED || !locks_held());
    has[to] = has[fd];
    int r = (int)syscall(SYS_dup3, fd, to, flags);
    step();
    return r;
}
CALL(ssize_t, pread, (int fd, void *to, size_t n, off_t at)) {
    EXPECT(is_its(fd));
    if (has[fd] == HANDED)
        note_met(READ_BY_HANDED);
    ssize_t r = syscall(SYS_pread64, fd, to, n, at);
    step();
    return r;
}
CALL(int, unlinkat, (int dir, const char *name, int flags)) {
    int r = (int)syscall(SYS_unlinkat, dir, name, flags);
    step();
    return r;
}
CALL(int, statx, (int dir, const char *path, int flags, unsigned mask, struct statx *to)) {
    EXPECT(is_its(dir));
    int r = (int)syscall(SYS_statx, dir, path, flags, mask, to);
    step();
    return r;
}

/* The following calls are not steps of the scheduler, because other threads do not see their
 * effects. */
CALL(int, fcntl, (int fd, int command, ...)) {
    EXPECT(is_its(fd) && command == F_GETFL);
    return (int)syscall(SYS_fcntl, fd, command, 0);
}
CALL(int, fstat, (int fd, struct stat *st)) {
    EXPECT(is_its(fd));
    return (int)syscall(SYS_newfstatat, fd, "", st, AT_EMPTY_PATH);
}
CALL(int, fstatfs, (int fd, struct statfs *fs)) { return (int)syscall(SYS_fstatfs, fd, fs); }
CALL(int, futimens, (int fd, const struct timespec times[2])) {
    return (int)syscall(SYS_utimensat, fd, NULL, times, 0);
}
CALL(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t offset)) {
    return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, offset);
}
CALL(int, munmap, (void *at, size_t n)) { return (int)syscall(SYS_munmap, at, n); }
CALL(int, madvise, (void *at, size_t n, int advice)) {
    return (int)syscall(SYS_madvise, at, n, advice);
}
CALL(int, getrlimit, (int what, struct rlimit *limit)) {
    (void)what;
    *limit = (struct rlimit){most_descriptors, most_descriptors};
    return 0;
}

/* --- sockets ------------------------------------------------------------------------------------
 */

CALL(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags)) {
    int handed = -1;
    EXPECT(flags & MSG_DONTWAIT);
    ssize_t n = syscall(SYS_recvmsg, fd, message, flags);
    const struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(message) : NULL;
    if (c) {
        memcpy(&handed, CMSG_DATA(c), sizeof handed);
        note_met(HANDED_OVER);
    }
    note_open(handed, HANDED);
    EXPECT(handed_descriptors() <= most_handed);
    step();
    return n;
}
CALL(int, epoll_create1, (int flags)) {
    int fd = (int)syscall(SYS_epoll_create1, flags);
    note_open(fd, OWN);
    return fd;
}
CALL(int, eventfd, (unsigned value, int flags)) {
    int fd = (int)syscall(SYS_eventfd2, value, flags);
    note_open(fd, OWN);
    return fd;
}
CALL(int, epoll_ctl, (int epoll, int command, int fd, struct epoll_event *event)) {
    int r = (int)syscall(SYS_epoll_ctl, epoll, command, fd, event);
    wake(INCOMING, 1, ANY_BIT);
    step();
    return r;
}
CALL(int, epoll_wait, (int epoll, struct epoll_event *events, int most, int limit_ms)) {
    int n;
    EXPECT(limit_ms == 0 || limit_ms == -1);
    while ((n = (int)syscall(SYS_epoll_pwait, epoll, events, most, 0, NULL, 8)) == 0 && limit_ms)
        sleep_on(INCOMING, NEVER, ANY_BIT);
    step();
    return n;
}
CALL(int, eventfd_write, (int fd, eventfd_t value)) {
    int r = syscall(SYS_write, fd, &value, sizeof value) == sizeof value ? 0 : -1;
    wake(INCOMING, 1 << 10, ANY_BIT);
    step();
    return r;
}

/* --- waiting ------------------------------------------------------------------------------------
 */

CALL(long, syscall, (long number, ...)) {
    va_list args;
    va_start(args, number);
    uint32_t *word = va_arg(args, uint32_t *);
    int how = va_arg(args, int);
    uint32_t value = va_arg(args, uint32_t);
    const struct timespec *limit = va_arg(args, const struct timespec *);
    (void)va_arg(args, void *);
    uint32_t bits = va_arg(args, uint32_t);
    va_end(args);
    EXPECT(number == SYS_futex);
    long r = scheduled_futex(word, how, value, limit, bits, __builtin_return_address(0));
    if (r < 0)
        errno = (int)-r;
    return r < 0 ? -1 : r;
}
CALL(int, nanosleep, (const struct timespec *time, struct timespec *left)) {
    (void)left;
    sleep_on(time, scheduled_ns() + time_of(time), ANY_BIT);
    return 0;
}

/* --- threads ------------------------------------------------------------------------------------
 */

CALL(int, pthread_create,
     (pthread_t * id, const pthread_attr_t *attributes, void *(*function)(void *), void *arg)) {
    int r = start_thread(id, attributes, function, arg);
    step();
    return r;
}
/* Does nothing, to save time. In libc, this function opens a file of the thread in /proc, and a
 * process whose files in /proc were opened takes longer to end. */
CALL(int, pthread_setname_np, (pthread_t id, const char *name)) {
    (void)id, (void)name;
    return 0;
}
/* Ignores the time limit. If a thread hangs, the scheduler fails the run. */
CALL(int, pthread_timedjoin_np, (pthread_t id, void **result, const struct timespec *until)) {
    (void)result, (void)until;
    join_thread(id);
    return 0;
}
