#include "preload/calls/names.c"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "made.h"

EXPORT void names_lack_renameat2(int is) { monarch_real.renameat2 = is ? (void *)1 : NULL; }
EXPORT int names_renameat2(int dir, const char *from, int todir, const char *to, unsigned flags) {
    errno = 54321;
    int r = renameat2(dir, from, todir, to, flags);
    return r == 0 && errno == 54321 ? 0 : -errno;
}

/* Stands for a rename during which a daemon adds the files below both names to the catalog. Before
 * the rename, these files were not in the catalog, so no change of them can have been recorded.
 * Therefore, this function removes all records of changes before it renames. */
static struct session *adding;
static int in_kernel(int dir, const char *from, int todir, const char *to, unsigned flags) {
    memset(adding->clients->changed, 0, sizeof adding->clients->changed);
    memset(adding->clients->changed_coarse, 0, sizeof adding->clients->changed_coarse);
    return (int)monarch_result(sys6(SYS_renameat2, dir, (long)from, todir, (long)to, flags, 0));
}
static int at_once(const char *from, const char *to) {
    return in_kernel(AT_FDCWD, from, AT_FDCWD, to, 0);
}
static int at_directories(int dir, const char *from, int todir, const char *to) {
    return in_kernel(dir, from, todir, to, 0);
}
EXPORT void names_add_meanwhile(struct session *s, int is) {
    adding = s;
    monarch_real.rename = is ? (void *)at_once : NULL;
    monarch_real.renameat = is ? (void *)at_directories : NULL;
    monarch_real.renameat2 = is ? (void *)in_kernel : NULL;
}

static int of(int r) { return r == 0 ? 0 : -errno; }
/* Makes the call with these paths. Returns 0 or -errno. dir, todir: AT_FDCWD or the descriptors to
 * which the paths are relative. */
EXPORT int names_call(const char *call, int dir, const char *path, int todir, const char *to) {
    const int is_at = dir != AT_FDCWD;
    char name[MONARCH_PATH_MAX];
    if (!strcmp(call, "rename"))
        return of(is_at ? renameat(dir, path, todir, to) : rename(path, to));
    if (!strcmp(call, "exchange"))
        return of(renameat2(dir, path, todir, to, 2 /* RENAME_EXCHANGE */));
    if (!strcmp(call, "link"))
        return of(is_at ? linkat(dir, path, todir, to, 0) : link(path, to));
    if (!strcmp(call, "link through"))
        return of(linkat(dir, path, todir, to, AT_SYMLINK_FOLLOW));
    if (!strcmp(call, "symlink"))
        return of(is_at ? symlinkat("any", dir, path) : symlink("any", path));
    if (!strcmp(call, "unlink"))
        return of(is_at ? unlinkat(dir, path, 0) : unlink(path));
    if (!strcmp(call, "rmdir"))
        return of(is_at ? unlinkat(dir, path, AT_REMOVEDIR) : rmdir(path));
    if (!strcmp(call, "remove"))
        return of(remove(path));
    if (!strcmp(call, "mkdir"))
        return of(is_at ? mkdirat(dir, path, 0750) : mkdir(path, 0750));
    if (!strcmp(call, "mkfifo"))
        return of(is_at ? mkfifoat(dir, path, 0640) : mkfifo(path, 0640));
    if (!strcmp(call, "mknod"))
        return of(is_at ? mknodat(dir, path, S_IFREG | 0640, 0) : mknod(path, S_IFREG | 0640, 0));
    dev_t none = 0;
    if (!strcmp(call, "xmknod"))
        return of(is_at ? __xmknodat(0, dir, path, S_IFIFO | 0640, &none)
                        : __xmknod(0, path, S_IFIFO | 0640, &none));
    if (!strcmp(call, "mkdtemp"))
        return mkdtemp(strcat(strcpy(name, path), "XXXXXX")) ? 0 : -errno;
    return -ENOSYS;
}
/* Binds a socket to an address of `n` bytes, and returns 0 or -errno. */
EXPORT int names_bind(int fd, const char *address, unsigned n) {
    return of(bind(fd, (const void *)address, n));
}
