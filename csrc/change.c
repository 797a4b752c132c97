/* Calls that change a file's names or attributes. Each does exactly what was asked, at the source;
 * before it, the file that the name leads to is recorded as changed, so that nobody is given the
 * old copy once it returns (not even when the caller is killed right after it). A call that then
 * fails has cost the file its copy for this session, nothing else. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "calls.h"
#include "serve.h"
#include "sys.h"

/* --- names ---------------------------------------------------------------------------------- */

static void before_rename(int fromdir, const char *from, int todir, const char *to) {
    if (!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE))
        return;
    monarch_changed_tree(fromdir, from);
    monarch_changed_tree(todir, to);
}

/* What was catalogued below a directory between our look and the rename itself. */
static int after_rename(int r, int fromdir, const char *from, int todir, const char *to) {
    int error = errno;
    if (r == 0 && __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE)) {
        monarch_changed_tree(todir, to);
        monarch_changed_tree(fromdir, from); /* exists only after an exchange */
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
    if (REAL(renameat2)) /* glibc 2.28 */
        return REAL(renameat2)(fromdir, from, todir, to, flags);
    long r = sys6(SYS_renameat2, fromdir, (long)from, todir, (long)to, flags, 0);
    if (r >= 0)
        return 0;
    errno = (int)-r;
    return -1;
}

PUBLIC int renameat2(int fromdir, const char *from, int todir, const char *to, unsigned flags) {
    before_rename(fromdir, from, todir, to);
    return after_rename(real_renameat2(fromdir, from, todir, to, flags), fromdir, from, todir, to);
}

PUBLIC int link(const char *from, const char *to) {
    monarch_changed_path(AT_FDCWD, from, 0);
    return REAL(link)(from, to);
}

PUBLIC int linkat(int fromdir, const char *from, int todir, const char *to, int flags) {
    monarch_changed_path(fromdir, from, flags & AT_SYMLINK_FOLLOW);
    return REAL(linkat)(fromdir, from, todir, to, flags);
}

PUBLIC int unlink(const char *path) {
    monarch_changed_path(AT_FDCWD, path, 0);
    return REAL(unlink)(path);
}

PUBLIC int unlinkat(int dir, const char *path, int flags) {
    monarch_changed_path(dir, path, 0);
    return REAL(unlinkat)(dir, path, flags);
}

PUBLIC int remove(const char *path) {
    monarch_changed_path(AT_FDCWD, path, 0);
    return REAL(remove)(path);
}

PUBLIC int rmdir(const char *path) {
    monarch_changed_path(AT_FDCWD, path, 0);
    return REAL(rmdir)(path);
}

/* --- content and attributes by path ---------------------------------------------------------- */

PUBLIC int truncate(const char *path, off_t length) {
    monarch_changed_path(AT_FDCWD, path, 1);
    return REAL(truncate)(path, length);
}

PUBLIC int chmod(const char *path, mode_t mode) {
    monarch_changed_path(AT_FDCWD, path, 1);
    return REAL(chmod)(path, mode);
}

PUBLIC int fchmodat(int dir, const char *path, mode_t mode, int flags) {
    monarch_changed_path(dir, path, !(flags & AT_SYMLINK_NOFOLLOW));
    return REAL(fchmodat)(dir, path, mode, flags);
}

PUBLIC int chown(const char *path, uid_t uid, gid_t gid) {
    monarch_changed_path(AT_FDCWD, path, 1);
    return REAL(chown)(path, uid, gid);
}

PUBLIC int lchown(const char *path, uid_t uid, gid_t gid) {
    monarch_changed_path(AT_FDCWD, path, 0);
    return REAL(lchown)(path, uid, gid);
}

PUBLIC int utime(const char *path, const struct utimbuf *times) {
    monarch_changed_path(AT_FDCWD, path, 1);
    return REAL(utime)(path, times);
}

PUBLIC int utimes(const char *path, const struct timeval times[2]) {
    monarch_changed_path(AT_FDCWD, path, 1);
    return REAL(utimes)(path, times);
}

PUBLIC int lutimes(const char *path, const struct timeval times[2]) {
    monarch_changed_path(AT_FDCWD, path, 0);
    return REAL(lutimes)(path, times);
}

PUBLIC int setxattr(const char *path, const char *name, const void *value, size_t n, int flags) {
    monarch_changed_path(AT_FDCWD, path, 1);
    return REAL(setxattr)(path, name, value, n, flags);
}

PUBLIC int lsetxattr(const char *path, const char *name, const void *value, size_t n, int flags) {
    monarch_changed_path(AT_FDCWD, path, 0);
    return REAL(lsetxattr)(path, name, value, n, flags);
}

PUBLIC int removexattr(const char *path, const char *name) {
    monarch_changed_path(AT_FDCWD, path, 1);
    return REAL(removexattr)(path, name);
}

PUBLIC int lremovexattr(const char *path, const char *name) {
    monarch_changed_path(AT_FDCWD, path, 0);
    return REAL(lremovexattr)(path, name);
}

/* --- attributes by descriptor ----------------------------------------------------------------
 * A descriptor of a copy stands for its source file, which is then changed by its path. */

static int is_of_copy(int fd, char *path) {
    if (fd < 0 || !__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE))
        return 0;
    if (monarch_source_path_of(fd, path)) {
        monarch_changed_path(AT_FDCWD, path, 1);
        return 1;
    }
    monarch_changed_fd(fd);
    return 0;
}

PUBLIC int fchmod(int fd, mode_t mode) {
    char path[MONARCH_PATH_MAX];
    return is_of_copy(fd, path) ? REAL(chmod)(path, mode) : REAL(fchmod)(fd, mode);
}

PUBLIC int fchown(int fd, uid_t uid, gid_t gid) {
    char path[MONARCH_PATH_MAX];
    return is_of_copy(fd, path) ? REAL(chown)(path, uid, gid) : REAL(fchown)(fd, uid, gid);
}

/* An empty path with AT_EMPTY_PATH is the descriptor itself. */
PUBLIC int fchownat(int dir, const char *path, uid_t uid, gid_t gid, int flags) {
    char real[MONARCH_PATH_MAX];
    if ((flags & AT_EMPTY_PATH) && is_of_copy(dir, real))
        return REAL(chown)(real, uid, gid);
    monarch_changed_path(dir, path, !(flags & AT_SYMLINK_NOFOLLOW));
    return REAL(fchownat)(dir, path, uid, gid, flags);
}

PUBLIC int futimes(int fd, const struct timeval times[2]) {
    char path[MONARCH_PATH_MAX];
    return is_of_copy(fd, path) ? REAL(utimes)(path, times) : REAL(futimes)(fd, times);
}

PUBLIC int futimens(int fd, const struct timespec times[2]) {
    char path[MONARCH_PATH_MAX];
    return is_of_copy(fd, path) ? REAL(utimensat)(AT_FDCWD, path, times, 0)
                                : REAL(futimens)(fd, times);
}

/* futimesat and utimensat mean the descriptor itself when there is no path. */
static int names_descriptor(const char *path) { return !path; }

PUBLIC int futimesat(int dir, const char *path, const struct timeval times[2]) {
    char real[MONARCH_PATH_MAX];
    if (names_descriptor(path) && is_of_copy(dir, real))
        return REAL(utimes)(real, times);
    monarch_changed_path(dir, path, 1);
    return REAL(futimesat)(dir, path, times);
}

PUBLIC int utimensat(int dir, const char *path, const struct timespec times[2], int flags) {
    char real[MONARCH_PATH_MAX];
    if ((names_descriptor(path) || (flags & AT_EMPTY_PATH)) && is_of_copy(dir, real))
        return REAL(utimensat)(AT_FDCWD, real, times, 0);
    monarch_changed_path(dir, path, !(flags & AT_SYMLINK_NOFOLLOW));
    return REAL(utimensat)(dir, path, times, flags);
}

PUBLIC int fsetxattr(int fd, const char *name, const void *value, size_t n, int flags) {
    char path[MONARCH_PATH_MAX];
    return is_of_copy(fd, path) ? REAL(setxattr)(path, name, value, n, flags)
                                : REAL(fsetxattr)(fd, name, value, n, flags);
}

PUBLIC int fremovexattr(int fd, const char *name) {
    char path[MONARCH_PATH_MAX];
    return is_of_copy(fd, path) ? REAL(removexattr)(path, name) : REAL(fremovexattr)(fd, name);
}

TWINS_OF_CHANGE(TWIN)
