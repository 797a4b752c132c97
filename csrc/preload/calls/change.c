/* Interposed calls that change a file's content or attributes, by name or by descriptor.
 *
 * Each call makes exactly the requested change, at the source. The library records the file as
 * changed before the call. So no process reads the old copy after the call, even if the caller is
 * killed. If the call fails, the file is unchanged, but its copy is not used again in this
 * session. */
#include <string.h>

#include "preload/changes/record.h"
#include "preload/process/calls.h"
#include "shared/path.h"
#include "shared/sys.h"

/* --- content and attributes by path ---------------------------------------------------------- */

PUBLIC int truncate(const char *path, off_t length) {
    char real[MONARCH_PATH_MAX];
    return REAL(truncate)(monarch_path_to_change(AT_FDCWD, path, 1, real), length);
}

PUBLIC int chmod(const char *path, mode_t mode) {
    char real[MONARCH_PATH_MAX];
    return REAL(chmod)(monarch_path_to_change(AT_FDCWD, path, 1, real), mode);
}

/* glibc before 2.32 has no lchmod. Newer versions implement lchmod by the same call of fchmodat as
 * below. */
PUBLIC int lchmod(const char *path, mode_t mode) {
    monarch_changed_path(AT_FDCWD, path, 0);
    if (REAL(lchmod))
        return REAL(lchmod)(path, mode);
    return REAL(fchmodat)(AT_FDCWD, path, mode, AT_SYMLINK_NOFOLLOW);
}

PUBLIC int chown(const char *path, uid_t uid, gid_t gid) {
    char real[MONARCH_PATH_MAX];
    return REAL(chown)(monarch_path_to_change(AT_FDCWD, path, 1, real), uid, gid);
}

PUBLIC int lchown(const char *path, uid_t uid, gid_t gid) {
    monarch_changed_path(AT_FDCWD, path, 0);
    return REAL(lchown)(path, uid, gid);
}

PUBLIC int utime(const char *path, const struct utimbuf *times) {
    char real[MONARCH_PATH_MAX];
    return REAL(utime)(monarch_path_to_change(AT_FDCWD, path, 1, real), times);
}

PUBLIC int utimes(const char *path, const struct timeval times[2]) {
    char real[MONARCH_PATH_MAX];
    return REAL(utimes)(monarch_path_to_change(AT_FDCWD, path, 1, real), times);
}

PUBLIC int lutimes(const char *path, const struct timeval times[2]) {
    monarch_changed_path(AT_FDCWD, path, 0);
    return REAL(lutimes)(path, times);
}

PUBLIC int setxattr(const char *path, const char *name, const void *value, size_t n, int flags) {
    char real[MONARCH_PATH_MAX];
    return REAL(setxattr)(monarch_path_to_change(AT_FDCWD, path, 1, real), name, value, n, flags);
}

PUBLIC int lsetxattr(const char *path, const char *name, const void *value, size_t n, int flags) {
    monarch_changed_path(AT_FDCWD, path, 0);
    return REAL(lsetxattr)(path, name, value, n, flags);
}

PUBLIC int removexattr(const char *path, const char *name) {
    char real[MONARCH_PATH_MAX];
    return REAL(removexattr)(monarch_path_to_change(AT_FDCWD, path, 1, real), name);
}

PUBLIC int lremovexattr(const char *path, const char *name) {
    monarch_changed_path(AT_FDCWD, path, 0);
    return REAL(lremovexattr)(path, name);
}

/* --- attributes by descriptor --------------------------------------------------------------------
 * If the descriptor refers to a copy, the call changes the source's file instead, by its path. */

PUBLIC int fchmod(int fd, mode_t mode) {
    char real[MONARCH_PATH_MAX];
    const char *path = monarch_fd_to_change(fd, real);
    return path ? REAL(chmod)(path, mode) : REAL(fchmod)(fd, mode);
}

PUBLIC int fchown(int fd, uid_t uid, gid_t gid) {
    char real[MONARCH_PATH_MAX];
    const char *path = monarch_fd_to_change(fd, real);
    return path ? REAL(chown)(path, uid, gid) : REAL(fchown)(fd, uid, gid);
}

PUBLIC int futimes(int fd, const struct timeval times[2]) {
    char real[MONARCH_PATH_MAX];
    const char *path = monarch_fd_to_change(fd, real);
    return path ? REAL(utimes)(path, times) : REAL(futimes)(fd, times);
}

PUBLIC int futimens(int fd, const struct timespec times[2]) {
    char real[MONARCH_PATH_MAX];
    const char *path = monarch_fd_to_change(fd, real);
    return path ? REAL(utimensat)(AT_FDCWD, path, times, 0) : REAL(futimens)(fd, times);
}

PUBLIC int fsetxattr(int fd, const char *name, const void *value, size_t n, int flags) {
    char real[MONARCH_PATH_MAX];
    const char *path = monarch_fd_to_change(fd, real);
    return path ? REAL(setxattr)(path, name, value, n, flags)
                : REAL(fsetxattr)(fd, name, value, n, flags);
}

PUBLIC int fremovexattr(int fd, const char *name) {
    char real[MONARCH_PATH_MAX];
    const char *path = monarch_fd_to_change(fd, real);
    return path ? REAL(removexattr)(path, name) : REAL(fremovexattr)(fd, name);
}

/* --- attributes by directory and path ------------------------------------------------------------
 * If the path is NULL, futimesat changes the file of the descriptor `dir`. */

static const char *to_change(int dir, const char *path, int flags, char *real) {
    if (!monarch_means_descriptor(path, flags))
        return monarch_path_to_change(dir, path, !(flags & AT_SYMLINK_NOFOLLOW), real);
    const char *source = monarch_fd_to_change(dir, real);
    return source ? source : path;
}

PUBLIC int fchmodat(int dir, const char *path, mode_t mode, int flags) {
    char real[MONARCH_PATH_MAX];
    path = monarch_path_to_change(dir, path, !(flags & AT_SYMLINK_NOFOLLOW), real);
    return REAL(fchmodat)(dir, path, mode, flags);
}

PUBLIC int fchownat(int dir, const char *path, uid_t uid, gid_t gid, int flags) {
    char real[MONARCH_PATH_MAX];
    path = to_change(dir, path, flags, real);
    return REAL(fchownat)(dir, path, uid, gid, path == real ? flags & ~AT_EMPTY_PATH : flags);
}

PUBLIC int futimesat(int dir, const char *path, const struct timeval times[2]) {
    char real[MONARCH_PATH_MAX];
    MAYBE_NULL(path);
    const char *source = path ? NULL : monarch_fd_to_change(dir, real);
    return REAL(futimesat)(dir, source ? source : to_change(dir, path, 0, real), times);
}

PUBLIC int utimensat(int dir, const char *path, const struct timespec times[2], int flags) {
    char real[MONARCH_PATH_MAX];
    path = to_change(dir, path, flags, real);
    return REAL(utimensat)(dir, path, times, path == real ? flags & ~AT_EMPTY_PATH : flags);
}

/* --- extended attributes, which a copy does not have ------------------------------------------ */

PUBLIC ssize_t fgetxattr(int fd, const char *name, void *value, size_t n) {
    char real[MONARCH_PATH_MAX];
    return monarch_is_copy(fd, real) ? REAL(getxattr)(real, name, value, n)
                                     : REAL(fgetxattr)(fd, name, value, n);
}

PUBLIC ssize_t flistxattr(int fd, char *list, size_t n) {
    char real[MONARCH_PATH_MAX];
    return monarch_is_copy(fd, real) ? REAL(listxattr)(real, list, n)
                                     : REAL(flistxattr)(fd, list, n);
}

PUBLIC ssize_t getxattr(const char *path, const char *name, void *value, size_t n) {
    char real[MONARCH_PATH_MAX];
    return REAL(getxattr)(monarch_names_copy(path, real) ? real : path, name, value, n);
}

PUBLIC ssize_t listxattr(const char *path, char *list, size_t n) {
    char real[MONARCH_PATH_MAX];
    return REAL(listxattr)(monarch_names_copy(path, real) ? real : path, list, n);
}

TWIN(truncate64, truncate)
