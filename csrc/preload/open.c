#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "calls.h"
#include "record.h"
#include "serve.h"
#include "sys.h"

/* open(2) reads `mode` only for these flags. O_TMPFILE contains the O_DIRECTORY bit, so compare
 * the full pattern: opening a directory passes no mode. */
static int needs_mode(int flags) { return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE; }

/* O_RDONLY | O_TRUNC truncates, and access mode 3 is for ioctl with the right to write. */
static int may_change(int flags) {
    return (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) || needs_mode(flags);
}

__attribute__((noinline)) static int open_for_change(int dir, const char *path, int flags,
                                                     mode_t mode, int plain) {
    char real[MONARCH_PATH_MAX];
    int follow = !(flags & O_NOFOLLOW), old_errno = errno;
    /* Truncation happens inside the call: whoever is killed right after it has recorded it. */
    if (flags & O_TRUNC)
        path = monarch_path_to_change(dir, path, follow, real);
    int fd = plain ? REAL(open)(path, flags, mode) : REAL(openat)(dir, path, flags, mode);
    /* O_RDONLY | O_CREAT changes no file that there is. */
    if ((flags & O_ACCMODE) == O_RDONLY && !(flags & O_TRUNC)) {
        if (fd >= 0)
            monarch_made(fd, dir, path, real);
        return fd;
    }
    /* A copy's descriptor opened again by its name in /proc: who writes, writes to the source. */
    if (fd >= 0 && monarch_opened_for_change(fd, flags & O_CREAT, dir, path, real)) {
        REAL(close)(fd);
        return REAL(open)(real, flags & ~O_CREAT);
    }
    if (fd < 0 && errno == EACCES && monarch_path_to_change(dir, path, follow, real) == real) {
        errno = old_errno;
        return REAL(open)(real, flags & ~O_CREAT);
    }
    return fd;
}

static int open_for_reading(int dir, const char *path, int flags, int plain) {
    struct session *s = session_for_reading();
    struct monarch_opening o;
    struct monarch_aim aim;
    if (!s)
        return plain ? REAL(open)(path, flags) : REAL(openat)(dir, path, flags);
    if (monarch_begin_look_up(s, dir, path, flags, &aim, &o)) {
        int old_errno = errno;
        uint64_t guess = o.word;
        int fd = guess ? REAL(open)(o.copy, flags) : -1;
        monarch_end_look_up(s, &aim, dir, path, flags, &o);
        int is_right = o.served && (o.word ^ guess) >> 8 == 0;
        if (fd >= 0 && !is_right)
            REAL(close)(fd); /* who is behind us has seen it opened */
        if (o.served && !is_right)
            fd = REAL(open)(o.copy, flags);
        errno = old_errno;
        if (fd >= 0 && o.served) {
            monarch_opened_copy(s, &o);
            return fd;
        }
        /* No such copy any more, no O_DIRECT on the tier, ...: the source. */
    }
    int fd = plain ? REAL(open)(path, flags) : REAL(openat)(dir, path, flags);
    if (fd >= 0 && o.id != MONARCH_OUTSIDE)
        monarch_opened_source(s, &o, flags, fd);
    return fd;
}

/* The name in /proc of a copy's descriptor is its file's, as it is now. */
__attribute__((noinline)) static int open_again(int dir, const char *path, int flags, int plain) {
    char real[MONARCH_PATH_MAX];
    if (monarch_names_copy(path, real) && real[0])
        path = real;
    return open_for_reading(dir, path, flags, plain);
}

static int open_any(int dir, const char *path, int flags, mode_t mode, int plain) {
    MAYBE_NULL(path);
    if (!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE))
        return plain ? REAL(open)(path, flags, mode) : REAL(openat)(dir, path, flags, mode);
    if (may_change(flags))
        return open_for_change(dir, path, flags, mode, plain);
    if (monarch_names_copy(path, NULL))
        return open_again(dir, path, flags, plain);
    return open_for_reading(dir, path, flags, plain);
}

/* `mode` is read only when the flags say that it was passed. */
static mode_t mode_of(int flags, va_list args) {
    return needs_mode(flags) ? va_arg(args, mode_t) : 0;
}

PUBLIC int open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    return open_any(AT_FDCWD, path, flags, mode, 1);
}

PUBLIC int openat(int dir, const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    return open_any(dir, path, flags, mode, 0);
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

static int made(int fd, const char *name) {
    char real[MONARCH_PATH_MAX];
    if (fd >= 0)
        monarch_opened_for_change(fd, 1, AT_FDCWD, name, real);
    return fd;
}

/* The child opens it inside libc. */
PUBLIC int posix_spawn_file_actions_addopen(posix_spawn_file_actions_t *actions, int fd,
                                            const char *path, int flags, mode_t mode) {
    char real[MONARCH_PATH_MAX];
    if (flags & O_CREAT)
        monarch_changed_names(AT_FDCWD, path);
    if (may_change(flags))
        path = monarch_path_to_change(AT_FDCWD, path, !(flags & O_NOFOLLOW), real);
    return REAL(posix_spawn_file_actions_addopen)(actions, fd, path, flags, mode);
}

PUBLIC int mkstemp(char *name) { return made(REAL(mkstemp)(name), name); }
PUBLIC int mkostemp(char *name, int flags) { return made(REAL(mkostemp)(name, flags), name); }
PUBLIC int mkstemps(char *name, int suffix) { return made(REAL(mkstemps)(name, suffix), name); }
PUBLIC int mkostemps(char *name, int suffix, int flags) {
    return made(REAL(mkostemps)(name, suffix, flags), name);
}

TWINS_OF_OPEN(TWIN)
