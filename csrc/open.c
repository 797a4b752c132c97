#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "calls.h"
#include "serve.h"
#include "sys.h"

/* open(2) reads `mode` only for these flags. O_TMPFILE contains the O_DIRECTORY bit, so compare
 * the full pattern: opening a directory passes no mode. */
static int needs_mode(int flags) { return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE; }

/* O_RDONLY | O_TRUNC truncates, and access mode 3 is for ioctl with the right to write. */
static int may_change(int flags) {
    return (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) || needs_mode(flags);
}

static int open_copy(int dir, const char *path, int flags) {
    struct session *s = session_for_reading();
    char copy[MONARCH_COPY_PATH];
    if (!s)
        return -1;
    const struct monarch_entry *e = monarch_copy_for(s, dir, path, flags, copy);
    if (!e)
        return -1;
    int old_errno = errno;
    int fd = REAL(open)(copy, flags);
    monarch_count(s, e, fd >= 0);
    if (fd < 0)
        errno = old_errno; /* no such copy any more, no O_DIRECT on the tier, ...: the source */
    return fd;
}

/* A descriptor of a copy can be opened again by its name in /proc: for writing it must lead to the
 * source. Returns whether `real` holds that path. */
static int leads_to_copy(int dir, const char *path, char *real) {
    if (!path || (strncmp(path, "/proc/", 6) != 0 && strncmp(path, "/dev/fd/", 8) != 0 &&
                  strncmp(path, "/dev/std", 8) != 0))
        return 0;
    int fd = sys_openat(dir, path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return 0;
    int found = monarch_source_path_of(fd, real);
    sys_close(fd);
    return found;
}

__attribute__((noinline)) static int open_for_change(int dir, const char *path, int flags,
                                                     mode_t mode, int plain) {
    char real[MONARCH_PATH_MAX];
    if (leads_to_copy(dir, path, real))
        path = real;
    /* Truncation happens inside the call: whoever is killed right after it has recorded it. */
    if (flags & O_TRUNC)
        monarch_changed_path(dir, path, !(flags & O_NOFOLLOW));
    int fd = plain ? REAL(open)(path, flags, mode) : REAL(openat)(dir, path, flags, mode);
    /* O_RDONLY | O_CREAT changes no file that there is. */
    if (fd >= 0 && ((flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC)))
        monarch_changed_fd(fd);
    return fd;
}

PUBLIC int open(const char *path, int flags, ...) {
    if (may_change(flags)) {
        mode_t mode = 0;
        if (needs_mode(flags)) {
            va_list args;
            va_start(args, flags);
            mode = va_arg(args, mode_t);
            va_end(args);
        }
        return __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE)
                   ? open_for_change(AT_FDCWD, path, flags, mode, 1)
                   : REAL(open)(path, flags, mode);
    }
    int fd = open_copy(AT_FDCWD, path, flags);
    return fd >= 0 ? fd : REAL(open)(path, flags);
}

PUBLIC int openat(int dir, const char *path, int flags, ...) {
    if (may_change(flags)) {
        mode_t mode = 0;
        if (needs_mode(flags)) {
            va_list args;
            va_start(args, flags);
            mode = va_arg(args, mode_t);
            va_end(args);
        }
        return __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE)
                   ? open_for_change(dir, path, flags, mode, 0)
                   : REAL(openat)(dir, path, flags, mode);
    }
    int fd = open_copy(dir, path, flags);
    return fd >= 0 ? fd : REAL(openat)(dir, path, flags);
}

/* The fortified names take no mode; libc itself deals with callers that should have passed one. */
int __open_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);

PUBLIC int __open_2(const char *path, int flags) {
    if (needs_mode(flags) && REAL(__open_2))
        return REAL(__open_2)(path, flags);
    return open(path, flags);
}

PUBLIC int __openat_2(int dir, const char *path, int flags) {
    if (needs_mode(flags) && REAL(__openat_2))
        return REAL(__openat_2)(dir, path, flags);
    return openat(dir, path, flags);
}

PUBLIC int creat(const char *path, mode_t mode) {
    return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

static int made(int fd) {
    if (fd >= 0)
        monarch_changed_fd(fd);
    return fd;
}

PUBLIC int mkstemp(char *name) { return made(REAL(mkstemp)(name)); }
PUBLIC int mkostemp(char *name, int flags) { return made(REAL(mkostemp)(name, flags)); }
PUBLIC int mkstemps(char *name, int suffix) { return made(REAL(mkstemps)(name, suffix)); }
PUBLIC int mkostemps(char *name, int suffix, int flags) {
    return made(REAL(mkostemps)(name, suffix, flags));
}

TWINS_OF_OPEN(TWIN)
