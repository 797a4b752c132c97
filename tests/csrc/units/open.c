/* In this unit, the tests see which steps a call takes: the calls of libc's functions, and the
 * changes that the library records before and after them. */
#include <errno.h>

#include "preload/changes/record.h"
#include "steps.h"

static int leads_to_copy; /* 1: every path leads to a copy of the source's file /real */
static const char *changed_file(int dir, const char *path, int follow, const char *real) {
    step("file %d %s%s", dir, path ? path : "-", follow ? "" : " itself");
    return real;
}
static void changed_fd(int fd) {
    step("changed %d", fd);
    errno = EIO;
}
static const char *opened_for_change(int fd, int created, int dir, const char *path, char *real) {
    step("changed %d%s %s", fd, created ? " created" : "", path);
    return leads_to_copy ? strcpy(real, "/real")
                         : monarch_opened_for_change(fd, created, dir, path, real);
}
static const char *file_to_change(int dir, const char *path, int follow, char *real) {
    step("file %d %s%s", dir, path, follow ? "" : " itself");
    return leads_to_copy ? strcpy(real, "/real") : monarch_file_to_change(dir, path, follow, real);
}
static void made_file(int fd, int dir, const char *path, char *real) {
    step("made %d", fd);
    monarch_made(fd, dir, path, real);
}
#define monarch_file_to_change(dir, path, follow, real) file_to_change(dir, path, follow, real)
#define monarch_made(fd, dir, path, real) made_file(fd, dir, path, real)
#define monarch_changed_file(dir, path, follow) changed_file(dir, path, follow, NULL)
#define monarch_path_to_change(dir, path, follow, real) \
    changed_file(dir, path, follow, strcpy(real, "/real"))
#define monarch_changed_fd(fd) changed_fd(fd)
#define monarch_opened_for_change(fd, created, dir, path, real) \
    opened_for_change(fd, (created) != 0, dir, path, real)
#include "preload/calls/open.c"

#include <stdlib.h>

#include "made.h"

static int result; /* what each original (function of libc) returns; if negative, the original fails
                      with -result */
static int ask(const char *call, int dir, const char *path, int flags, mode_t mode) {
    step("%s %d %s %o %o", call, dir, path ? path : "-", (unsigned)flags, mode);
    if (result < 0)
        errno = -result;
    return result < 0 ? -1 : result;
}
static int original_close(int fd) {
    step("close %d", fd);
    return 0;
}
static int original_open(const char *path, int flags, mode_t mode) {
    return ask("open", AT_FDCWD, path, flags, monarch_needs_mode(flags) ? mode : 0);
}
static int original_openat(int dir, const char *path, int flags, mode_t mode) {
    return ask("openat", dir, path, flags, monarch_needs_mode(flags) ? mode : 0);
}
static int original_open_2(const char *path, int flags) {
    return ask("__open_2", AT_FDCWD, path, flags, 0);
}
static int original_openat_2(int dir, const char *path, int flags) {
    return ask("__openat_2", dir, path, flags, 0);
}
static int original_openat2(int dir, const char *path, const struct open_how *how, size_t n) {
    return ask("openat2", dir, path, how ? (int)how->flags : -1, (mode_t)n);
}
static int original_open_by_handle_at(int mount, struct file_handle *handle, int flags) {
    return ask("open_by_handle_at", mount, handle ? "h" : "-", flags, 0);
}
static int original_mkstemp(char *name) { return ask("mkstemp", AT_FDCWD, name, 0, 0); }
static int original_mkostemp(char *name, int flags) {
    return ask("mkostemp", AT_FDCWD, name, flags, 0);
}
static int original_mkstemps(char *name, int suffix) {
    return ask("mkstemps", AT_FDCWD, name, 0, (mode_t)suffix);
}
static int original_mkostemps(char *name, int suffix, int flags) {
    return ask("mkostemps", AT_FDCWD, name, flags, (mode_t)suffix);
}
static int original_addopen(posix_spawn_file_actions_t *list, int fd, const char *path, int flags,
                            mode_t mode) {
    return (void)list, ask("addopen", fd, path, flags, mode);
}

/* is = 1: replaces libc's functions by the functions above. is = 0: the library finds libc's
 * functions again. is = -1: does the same as 1, but libc lacks what an older libc lacks. */
static void replace(int is) {
    void *const none = is < 0 ? (void *)1 : NULL;
#define ORIGINAL(name, function) monarch_real.name = is ? (void *)(function) : NULL;
    ORIGINAL(open, original_open)
    ORIGINAL(close, original_close)
    ORIGINAL(openat, original_openat)
    ORIGINAL(open_by_handle_at, original_open_by_handle_at)
    ORIGINAL(mkstemp, original_mkstemp)
    ORIGINAL(mkostemp, original_mkostemp)
    ORIGINAL(mkstemps, original_mkstemps)
    ORIGINAL(mkostemps, original_mkostemps)
    ORIGINAL(posix_spawn_file_actions_addopen, original_addopen)
    ORIGINAL(__open_2, none ? none : (void *)original_open_2)
    ORIGINAL(__openat_2, none ? none : (void *)original_openat_2)
    ORIGINAL(openat2, none ? none : (void *)original_openat2)
}

static int make(const char *call, int flags, mode_t mode) {
    char name[] = "f", handle;
    posix_spawn_file_actions_t list;
    struct open_how how = {.flags = (uint64_t)flags};
    if (!strcmp(call, "open"))
        return mode ? open("f", flags, mode) : open("f", flags);
    if (!strcmp(call, "openat"))
        return mode ? openat(7, "f", flags, mode) : openat(7, "f", flags);
    if (!strcmp(call, "__open_2"))
        return __open_2("f", flags);
    if (!strcmp(call, "__openat_2"))
        return __openat_2(7, "f", flags);
    if (!strcmp(call, "creat"))
        return creat("f", mode);
    if (!strcmp(call, "openat2"))
        return openat2(7, "f", &how, sizeof how);
    if (!strcmp(call, "openat2 short"))
        return openat2(7, "f", &how, sizeof how.flags - 1);
    if (!strcmp(call, "openat2 flags"))
        return openat2(7, "f", &how, sizeof how.flags);
    if (!strcmp(call, "openat2 none"))
        return openat2(7, "f", NULL, sizeof how);
    if (!strcmp(call, "open_by_handle_at"))
        return open_by_handle_at(7, (struct file_handle *)&handle, flags);
    if (!strcmp(call, "addopen"))
        return posix_spawn_file_actions_addopen(&list, 7, "f", flags, mode);
    if (!strcmp(call, "mkstemp"))
        return mkstemp(name);
    if (!strcmp(call, "mkostemp"))
        return mkostemp(name, flags);
    if (!strcmp(call, "mkstemps"))
        return mkstemps(name, 3);
    return mkostemps(name, 3, flags);
}
/* Makes the call while libc's function is replaced by one that returns `returned`; if `returned` is
 * negative, the function fails with -returned. Returns the call's result or -errno, or -9999 if the
 * call has succeeded but has changed errno. is_lacking: whether libc seems to lack the functions
 * that an older libc lacks. */
EXPORT int open_steps_of(const char *call, int flags, unsigned mode, int returned, int is_lacking) {
    steps[0] = 0;
    result = returned;
    replace(is_lacking ? -1 : 1);
    errno = 54321;
    int r = make(call, flags, mode);
    int error = errno;
    replace(0);
    return r < 0 ? -error : error == 54321 ? r : -9999;
}
EXPORT void open_leads_to_copy(int is) { leads_to_copy = is; }
EXPORT const char *open_steps(void) { return steps; }

/* Opens a file. Returns the descriptor or -errno, or -9999 if the call has succeeded but has
 * changed errno. */
EXPORT int open_file(int dir, const char *path, int flags, unsigned mode) {
    errno = 54321;
    int fd = dir == AT_FDCWD ? open(path, flags, mode) : openat(dir, path, flags, mode);
    return fd < 0 ? -errno : errno == 54321 ? fd : -9999;
}
