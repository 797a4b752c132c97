/* Preloaded into a daemon, this library makes O_DIRECT fail. The environment variable NO_DIRECT_IO
 * says how:
 *
 *   flag   the flag cannot be set for any file
 *   read   a read with the flag fails
 *   short  a read with the flag returns half of the bytes
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails_as(const char *how) {
    const char *wanted = getenv("NO_DIRECT_IO");
    return wanted && strcmp(wanted, how) == 0;
}

static int real_fcntl(int fd, int command, long argument) {
    static int (*real)(int, int, ...);
    if (!real)
        real = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl");
    return real(fd, command, argument);
}

int fcntl(int fd, int command, ...) {
    va_list more;
    va_start(more, command);
    long argument = va_arg(more, long);
    va_end(more);
    if (command == F_SETFL && argument & O_DIRECT && fails_as("flag")) {
        errno = EINVAL;
        return -1;
    }
    return real_fcntl(fd, command, argument);
}

ssize_t pread(int fd, void *bytes, size_t n, off_t at) {
    static ssize_t (*real)(int, void *, size_t, off_t);
    if (!real)
        real = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");
    int is_direct = (real_fcntl(fd, F_GETFL, 0) & O_DIRECT) != 0;
    if (is_direct && fails_as("read")) {
        errno = EINVAL;
        return -1;
    }
    return real(fd, bytes, is_direct && fails_as("short") ? n / 2 / 4096 * 4096 : n, at);
}
