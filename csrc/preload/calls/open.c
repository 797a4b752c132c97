/* Interposed calls that open files (open, openat, openat2, mkstemp and others). */
#include <errno.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <string.h>

#include "preload/autostart/autostart.h"
#include "preload/changes/record.h"
#include "preload/descriptors/track.h"
#include "preload/fill/open_wait.h"
#include "preload/fill/progress.h"
#include "preload/fill/serve.h"
#include "preload/process/calls.h"
#include "preload/promotion/promote.h"
#include "shared/sys.h"

__attribute__((noinline)) static int open_for_change(int dir, const char *path, int flags,
                                                     mode_t mode, int plain) {
    char real[MONARCH_PATH_MAX];
    int follow = !(flags & O_NOFOLLOW), old_errno = errno;
    /* An open with O_TRUNC changes the file. The change is recorded before the open, because the
     * caller may be killed right after the open. */
    if (flags & O_TRUNC)
        path = monarch_file_to_change(dir, path, follow, real);
    int fd = plain ? REAL(open)(path, flags, mode) : REAL(openat)(dir, path, flags, mode);
    /* Without O_TRUNC, O_RDONLY | O_CREAT can create a file, but changes no existing file. */
    if ((flags & O_ACCMODE) == O_RDONLY && !(flags & O_TRUNC)) {
        if (fd >= 0)
            monarch_made(fd, dir, path, real);
        return fd;
    }
    /* The path may lead to a copy that the program has open: for example, /proc/self/fd/7. In this
     * case, `fd` is a descriptor of the copy, but the program must write to the source's file. So
     * the source's file is opened instead. */
    if (fd >= 0 && monarch_opened_for_change(fd, flags & O_CREAT, dir, path, real)) {
        REAL(close)(fd);
        return REAL(open)(real, flags & ~O_CREAT);
    }
    if (fd < 0 && errno == EACCES && monarch_file_to_change(dir, path, follow, real) == real) {
        errno = old_errno;
        return REAL(open)(real, flags & ~O_CREAT);
    }
    return fd;
}

/* Waits for a copy that the daemon is making or will soon make, and opens the copy. Returns -1 if
 * the source must be opened instead. */
__attribute__((noinline)) static int open_awaited(struct session *s, int dir, const char *path,
                                                  int flags, struct monarch_opening *o) {
    int old_errno = errno;
    int fd = monarch_wait_at_open(s, dir, path, flags, o)
                 ? REAL(open)(o->copy, monarch_copy_flags(flags))
                 : -1;
    errno = old_errno;
    if (fd >= 0) {
        monarch_opened_copy(s, o);
        /* The program's reads of a file are counted if the file had no copy when the open began
         * (progress.h). But the library does not see reads of a copy. So it counts the whole file
         * as read now. */
        monarch_progress(s, (uint64_t)o->id, o->entry->size);
    }
    return fd;
}

/* Makes `fd`, a descriptor of the source's file, refer to the copy that the look-up `o` has found.
 * Does nothing if the program has locks on the file. Returns whether `fd` refers to the copy
 * now. */
static int is_promoted(struct session *s, const struct monarch_opening *o, int flags, int fd) {
    struct monarch_wanted w = {.session = s, .entry = o->entry, .id = (uint64_t)o->id};
    w.version = __atomic_load_n(&o->entry->version, __ATOMIC_ACQUIRE);
    w.ino = o->entry->ino;
    if (!o->served || !monarch_is_plain(flags) || w.version & 1)
        return 0;
    monarch_track(s, fd, w.id, 0);
    return monarch_promote(fd, monarch_tracked(fd), &w);
}

/* Call this if the library has found out by an open that the path's directory leads into a source.
 * Before the open, the path seemed to be outside all sources. Looks up `path` again. If the file
 * has a copy, makes `fd`, the result of the open, refer to the copy. Without this, the first file
 * that is opened in each such directory would be read from the source. */
__attribute__((noinline)) static void open_learnt(struct session *s, int dir, const char *path,
                                                  int flags, uint64_t took_ns, int fd) {
    struct monarch_opening o;
    int old_errno = errno;
    monarch_note_source_open(took_ns);
    monarch_look_up(s, dir, path, flags, &o);
    if (o.entry && is_promoted(s, &o, flags, fd))
        monarch_opened_copy(s, &o);
    else
        monarch_opened_source(s, &o, flags, took_ns, fd);
    errno = old_errno;
}

static int open_for_reading(int dir, const char *path, int flags, int plain) {
    struct session *s = session_for_reading();
    struct monarch_opening o;
    struct monarch_aim aim;
    if (!s) {
        int fd = plain ? REAL(open)(path, flags) : REAL(openat)(dir, path, flags);
        monarch_autostart_opened(fd);
        return fd;
    }
    if (monarch_begin_look_up(s, dir, path, flags, &aim, &o)) {
        int old_errno = errno;
        uint64_t guess = o.word;
        int fd = guess ? REAL(open)(o.copy, monarch_copy_flags(flags)) : -1;
        monarch_end_look_up(s, &aim, dir, path, flags, &o);
        int is_right = o.served && (o.word ^ guess) >> 8 == 0;
        if (fd >= 0 && !is_right)
            /* REAL(open) may belong to another preloaded library, which has then seen the open.
             * That library must see the close too, so sys_close is not used. */
            REAL(close)(fd);
        if (o.served && !is_right)
            fd = REAL(open)(o.copy, monarch_copy_flags(flags));
        errno = old_errno;
        if (fd >= 0 && o.served) {
            monarch_opened_copy(s, &o);
            return fd;
        }
        /* If the copy could not be opened, for example because it was removed or its tier does not
         * support O_DIRECT, the source is opened below. */
        if (!o.served && !o.claimed && (fd = open_awaited(s, dir, path, flags, &o)) >= 0)
            return fd;
    }
    int is_timed = o.id != MONARCH_OUTSIDE || o.is_new;
    uint64_t began_ns = is_timed ? monarch_now_ns() : 0;
    int fd = plain ? REAL(open)(path, flags) : REAL(openat)(dir, path, flags);
    uint64_t took_ns = is_timed ? monarch_now_ns() - began_ns : 0;
    if (fd >= 0 && o.id != MONARCH_OUTSIDE) {
        monarch_note_source_open(took_ns);
        monarch_opened_source(s, &o, flags, took_ns, fd);
    } else if (fd >= 0 && monarch_opened_elsewhere(s, &o, path, fd)) {
        open_learnt(s, dir, path, flags, took_ns, fd);
    }
    if (fd < 0 && o.entry)
        monarch_not_opened(s, &o);
    return fd;
}

/* Opens a path that may be a name in /proc that leads to a copy. If it is such a name, opens the
 * path of the source's file instead. */
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
    if (monarch_may_change(flags))
        return open_for_change(dir, path, flags, mode, plain);
    if (monarch_names_copy(path, NULL))
        return open_again(dir, path, flags, plain);
    return open_for_reading(dir, path, flags, plain);
}

/* Returns the argument `mode`, which callers pass only with certain flags. */
static mode_t mode_of(int flags, va_list args) {
    return monarch_needs_mode(flags) ? va_arg(args, mode_t) : 0;
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

/* The fortified functions have no argument `mode`. If the flags require a mode, libc's own function
 * is called, which reports the error. */
int __open_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);

PUBLIC int __open_2(const char *path, int flags) {
    if (monarch_needs_mode(flags) && REAL(__open_2))
        return REAL(__open_2)(path, flags);
    return open(path, flags);
}

PUBLIC int __openat_2(int dir, const char *path, int flags) {
    if (monarch_needs_mode(flags) && REAL(__openat_2))
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

/* Returns the flags in *how. n: size of the caller's struct open_how. The caller's version of the
 * struct may be older or newer than the library's. */
static int64_t flags_of(const struct open_how *how, size_t n) {
    MAYBE_NULL(how);
    return how && n >= sizeof how->flags ? (int64_t)how->flags : O_RDONLY;
}

/* For reading, openat2 opens the source's file even if the file has a copy. Only the kernel can
 * check restrictions such as RESOLVE_BENEATH. glibc has had openat2 since version 2.43. */
int openat2(int dir, const char *path, const struct open_how *how, size_t n);
PUBLIC int openat2(int dir, const char *path, const struct open_how *how, size_t n) {
    char real[MONARCH_PATH_MAX];
    int flags = (int)flags_of(how, n), changes = monarch_may_change(flags);
    if (changes && flags & O_TRUNC)
        monarch_changed_file(dir, path, !(flags & O_NOFOLLOW));
    int fd = -1;
    if (REAL(openat2))
        fd = REAL(openat2)(dir, path, how, n);
    else
        errno = ENOSYS;
    if (fd >= 0 && changes)
        monarch_opened_for_change(fd, flags & O_CREAT, dir, path, real);
    return fd;
}

/* From the handle alone, the library cannot find out which file it identifies. So before an open
 * that truncates the file, this function opens the file with O_PATH, and records the change for
 * that descriptor. */
PUBLIC int open_by_handle_at(int mount, struct file_handle *handle, int flags) {
    int old_errno = errno, changes = monarch_may_change(flags);
    if (changes && flags & O_TRUNC && __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE)) {
        int fd = REAL(open_by_handle_at)(mount, handle, O_PATH | O_CLOEXEC);
        monarch_changed_fd(fd);
        if (fd >= 0)
            sys_close(fd);
        errno = old_errno;
    }
    int fd = REAL(open_by_handle_at)(mount, handle, flags);
    if (fd >= 0 && changes)
        monarch_changed_fd(fd);
    return fd;
}

/* Adds an open to the actions that posix_spawn makes in the child. The library does not see this
 * open, because libc makes it. So if the file is opened for writing, and `path` leads to a copy,
 * this function adds the path of the source's file instead. When the program calls posix_spawn,
 * spawn.c records that the child may change the file. */
PUBLIC int posix_spawn_file_actions_addopen(posix_spawn_file_actions_t *actions, int fd,
                                            const char *path, int flags, mode_t mode) {
    char real[MONARCH_PATH_MAX];
    if (monarch_may_change(flags))
        path = monarch_path_to_change(AT_FDCWD, path, !(flags & O_NOFOLLOW), real);
    return REAL(posix_spawn_file_actions_addopen)(actions, fd, path, flags, mode);
}

PUBLIC int mkstemp(char *name) { return made(REAL(mkstemp)(name), name); }
PUBLIC int mkostemp(char *name, int flags) { return made(REAL(mkostemp)(name, flags), name); }
PUBLIC int mkstemps(char *name, int suffix) { return made(REAL(mkstemps)(name, suffix), name); }
PUBLIC int mkostemps(char *name, int suffix, int flags) {
    return made(REAL(mkostemps)(name, suffix, flags), name);
}

TWIN(__open, open)
TWIN(__open64, open)
TWIN(open64, open)
TWIN(openat64, openat)
TWIN(__open64_2, __open_2)
TWIN(__openat64_2, __openat_2)
TWIN(creat64, creat)
TWIN(mkstemp64, mkstemp)
TWIN(mkostemp64, mkostemp)
TWIN(mkstemps64, mkstemps)
TWIN(mkostemps64, mkostemps)
