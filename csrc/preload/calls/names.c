/* Interposed calls that create, rename and remove names.
 *
 * Each call makes exactly the requested change, at the source. The library records a change of the
 * file to which the name leads, and of the directory that contains the name. Usually, it records
 * them before the call. So after the call, no process reads an outdated copy or listing. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "preload/changes/record.h"
#include "preload/process/calls.h"
#include "preload/session/session.h"
#include "shared/path.h"
#include "shared/sys.h"

static void before_rename(int fromdir, const char *from, int todir, const char *to) {
    if (!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE))
        return;
    monarch_changed_tree(fromdir, from);
    monarch_changed_tree(todir, to);
    monarch_changed_names(fromdir, from);
    monarch_changed_names(todir, to);
}

/* Call this after a rename. Returns r, the result of the rename. Records once more that the renamed
 * trees have changed. Since before_rename has recorded it, the daemon may have added more files of
 * these trees to the catalog. */
static int after_rename(int r, int fromdir, const char *from, int todir, const char *to) {
    int error = errno;
    if (r == 0 && __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE)) {
        monarch_changed_tree(todir, to);
        /* After a rename, there is a file at `from` only if the two names were exchanged
         * (RENAME_EXCHANGE). */
        monarch_changed_tree(fromdir, from);
    }
    errno = error;
    return r;
}

PUBLIC int rename(const char *from, const char *to) {
    before_rename(AT_FDCWD, from, AT_FDCWD, to);
    return after_rename(REAL(rename)(from, to), AT_FDCWD, from, AT_FDCWD, to);
}

PUBLIC int renameat(int fromdir, const char *from, int todir, const char *to) {
    before_rename(fromdir, from, todir, to);
    return after_rename(REAL(renameat)(fromdir, from, todir, to), fromdir, from, todir, to);
}

static int real_renameat2(int fromdir, const char *from, int todir, const char *to,
                          unsigned flags) {
    if (REAL(renameat2)) /* since glibc 2.28 */
        return REAL(renameat2)(fromdir, from, todir, to, flags);
    return (int)monarch_result(sys6(SYS_renameat2, fromdir, (long)from, todir, (long)to, flags, 0));
}

PUBLIC int renameat2(int fromdir, const char *from, int todir, const char *to, unsigned flags) {
    before_rename(fromdir, from, todir, to);
    return after_rename(real_renameat2(fromdir, from, todir, to, flags), fromdir, from, todir, to);
}

PUBLIC int link(const char *from, const char *to) {
    monarch_changed_path(AT_FDCWD, from, 0);
    monarch_changed_names(AT_FDCWD, to);
    return REAL(link)(from, to);
}

/* This is a separate function, so that its buffer is not on the stack at the same time as the
 * buffer of monarch_changed_names. */
__attribute__((noinline)) static int link_changed(int fromdir, const char *from, int todir,
                                                  const char *to, int flags) {
    char real[MONARCH_PATH_MAX];
    const char *source = NULL;
    if (monarch_means_descriptor(from, flags))
        source = monarch_fd_to_change(fromdir, real);
    else
        from = monarch_file_to_change(fromdir, from, flags & AT_SYMLINK_FOLLOW, real);
    if (source)
        return REAL(linkat)(AT_FDCWD, source, todir, to, 0);
    /* If `from` led to a copy, it is now `real`, the path of the source's file. No link must then
     * be followed, so the flags are 0. */
    return REAL(linkat)(fromdir, from, todir, to, from == real ? 0 : flags);
}

PUBLIC int linkat(int fromdir, const char *from, int todir, const char *to, int flags) {
    monarch_changed_names(todir, to);
    int r = link_changed(fromdir, from, todir, to, flags);
    if (r == 0)
        monarch_changed_known(fromdir, from, flags & AT_SYMLINK_FOLLOW);
    return r;
}

static void will_go(int dir, const char *path) {
    if (monarch_changed_path(dir, path, 0))
        monarch_changed_names(dir, path);
}

PUBLIC int unlink(const char *path) {
    will_go(AT_FDCWD, path);
    return REAL(unlink)(path);
}

PUBLIC int unlinkat(int dir, const char *path, int flags) {
    will_go(dir, path);
    return REAL(unlinkat)(dir, path, flags);
}

PUBLIC int remove(const char *path) {
    will_go(AT_FDCWD, path);
    return REAL(remove)(path);
}

PUBLIC int rmdir(const char *path) {
    will_go(AT_FDCWD, path);
    return REAL(rmdir)(path);
}

/* --- new names -------------------------------------------------------------------------------- */

PUBLIC int mkdir(const char *path, mode_t mode) {
    monarch_changed_names(AT_FDCWD, path);
    return REAL(mkdir)(path, mode);
}

PUBLIC int mkdirat(int dir, const char *path, mode_t mode) {
    monarch_changed_names(dir, path);
    return REAL(mkdirat)(dir, path, mode);
}

PUBLIC char *mkdtemp(char *name) {
    char *made = REAL(mkdtemp)(name);
    if (made)
        monarch_changed_names(AT_FDCWD, made);
    return made;
}

PUBLIC int symlink(const char *target, const char *path) {
    monarch_changed_names(AT_FDCWD, path);
    return REAL(symlink)(target, path);
}

PUBLIC int symlinkat(const char *target, int dir, const char *path) {
    monarch_changed_names(dir, path);
    return REAL(symlinkat)(target, dir, path);
}

PUBLIC int mkfifo(const char *path, mode_t mode) {
    monarch_changed_names(AT_FDCWD, path);
    return REAL(mkfifo)(path, mode);
}

PUBLIC int mkfifoat(int dir, const char *path, mode_t mode) {
    monarch_changed_names(dir, path);
    return REAL(mkfifoat)(dir, path, mode);
}

/* In glibc before 2.33, mknod and mknodat are inline functions that call the next two functions. */
PUBLIC int __xmknod(int version, const char *path, mode_t mode, dev_t *device) {
    monarch_changed_names(AT_FDCWD, path);
    return REAL(__xmknod)(version, path, mode, device);
}

PUBLIC int __xmknodat(int version, int dir, const char *path, mode_t mode, dev_t *device) {
    monarch_changed_names(dir, path);
    return REAL(__xmknodat)(version, dir, path, mode, device);
}

PUBLIC int mknodat(int dir, const char *path, mode_t mode, dev_t device) {
    monarch_changed_names(dir, path);
    return REAL(mknodat) ? REAL(mknodat)(dir, path, mode, device)
                         : REAL(__xmknodat)(0, dir, path, mode, &device);
}

PUBLIC int mknod(const char *path, mode_t mode, dev_t device) {
    monarch_changed_names(AT_FDCWD, path);
    return REAL(mknod) ? REAL(mknod)(path, mode, device) : REAL(__xmknod)(0, path, mode, &device);
}

/* Binding a local socket creates a name in the file system, unless the address begins with a NUL.
 * The change is recorded after the call. Before the call, `address` might be a bad pointer, and the
 * program would crash if the library read it. */
PUBLIC int bind(int fd, const struct sockaddr *address, socklen_t n) {
    const struct sockaddr_un *local = (const void *)address;
    char path[sizeof local->sun_path + 1];
    size_t before = offsetof(struct sockaddr_un, sun_path);
    int r = REAL(bind)(fd, address, n);
    if (r == 0 && n > before && n <= sizeof *local && address->sa_family == AF_UNIX) {
        memcpy(path, local->sun_path, n - before);
        path[n - before] = 0;
        monarch_changed_names(AT_FDCWD, path);
    }
    return r;
}
