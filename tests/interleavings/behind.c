/* The functions that the library calls in place of libc's. Each makes its system call, and then
 * calls step(), so that the scheduler can switch threads. */
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload/process/calls.h"
#include "scheduler.h"
#include "site.h"

static int real_open(const char *path, int flags, ...) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0);
    step();
    return fd;
}
static int real_close(int fd) {
    int r = (int)syscall(SYS_close, fd);
    step();
    return r;
}
static ssize_t real_read(int fd, void *to, size_t n) {
    ssize_t r = syscall(SYS_read, fd, to, n);
    step();
    return r;
}
static ssize_t real_pread(int fd, void *to, size_t n, off_t at) {
    ssize_t r = syscall(SYS_pread64, fd, to, n, at);
    step();
    return r;
}
static int real_dup2(int fd, int fresh) {
    int r = (int)syscall(SYS_dup2, fd, fresh);
    step();
    return r;
}
static int real_fcntl(int fd, int command, ...) {
    va_list args;
    va_start(args, command);
    int r = (int)syscall(SYS_fcntl, fd, command, va_arg(args, long));
    va_end(args);
    step();
    return r;
}
static int real_flock(int fd, int operation) {
    int r = (int)syscall(SYS_flock, fd, operation);
    step();
    return r;
}
static int real_rename(const char *from, const char *to) {
    int r = (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
    step();
    return r;
}

void stand_behind_the_library(void) {
    monarch_real.open = (void *)real_open;
    monarch_real.close = (void *)real_close;
    monarch_real.read = (void *)real_read;
    monarch_real.pread = (void *)real_pread;
    monarch_real.dup2 = (void *)real_dup2;
    monarch_real.fcntl = (void *)real_fcntl;
    monarch_real.flock = (void *)real_flock;
    monarch_real.rename = (void *)real_rename;
}
