/* The table of all functions that are interposed. The table contains names such as `__open_2` and
 * `__read_chk`, because _FORTIFY_SOURCE replaces calls of `open` and `read` with calls of these
 * functions. It does not contain names such as `open64`, because TWIN makes each of them an alias
 * of the plain function.
 *
 *   X(name, return type, arguments)   a function that the library interposes; the original is in a
 *                                     library loaded after this one, and is looked up when it is
 *                                     first called
 *   F(name, return type, arguments)   a function that the library only calls; it is looked up when
 *                                     the library is loaded
 *   TWIN(alias, name)                 gives an interposed function a second name (open64 for open);
 *                                     on LP64, both names mean the same call; the TWIN lines are in
 *                                     the files of calls/ */
#pragma once

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <utime.h>

#include "preload/process/attributes.h"

struct statx;
struct open_how;
struct file_handle;

#define MONARCH_CALLS(X)                                                                           \
    /* opening: open.c, stdio.c */                                                                 \
    X(open, int, (const char *path, int flags, ...))                                               \
    X(openat, int, (int dir, const char *path, int flags, ...))                                    \
    X(__open_2, int, (const char *path, int flags))                                                \
    X(__openat_2, int, (int dir, const char *path, int flags))                                     \
    X(creat, int, (const char *path, mode_t mode))                                                 \
    X(fopen, FILE *, (const char *path, const char *mode))                                         \
    X(freopen, FILE *, (const char *path, const char *mode, FILE *stream))                         \
    X(mkstemp, int, (char *template))                                                              \
    X(mkostemp, int, (char *template, int flags))                                                  \
    X(mkstemps, int, (char *template, int suffix))                                                 \
    X(mkostemps, int, (char *template, int suffix, int flags))                                     \
    X(posix_spawn_file_actions_addopen, int,                                                       \
      (posix_spawn_file_actions_t * actions, int fd, const char *path, int flags, mode_t mode))    \
    X(openat2, int, (int dir, const char *path, const struct open_how *how, size_t n))             \
    X(open_by_handle_at, int, (int mount, struct file_handle *handle, int flags))                  \
    /* spawning: spawn.c */                                                                        \
    X(posix_spawn, int,                                                                            \
      (pid_t * pid, const char *path, const posix_spawn_file_actions_t *actions,                   \
       const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]))               \
    X(posix_spawnp, int,                                                                           \
      (pid_t * pid, const char *file, const posix_spawn_file_actions_t *actions,                   \
       const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]))               \
    X(pidfd_spawn, int,                                                                            \
      (int *pidfd, const char *path, const posix_spawn_file_actions_t *actions,                    \
       const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]))               \
    X(pidfd_spawnp, int,                                                                           \
      (int *pidfd, const char *file, const posix_spawn_file_actions_t *actions,                    \
       const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]))               \
    /* reading: read.c */                                                                          \
    X(read, ssize_t, (int fd, void *buf, size_t n))                                                \
    X(pread, ssize_t, (int fd, void *buf, size_t n, off_t at))                                     \
    X(readv, ssize_t, (int fd, const struct iovec *parts, int count))                              \
    X(preadv, ssize_t, (int fd, const struct iovec *parts, int count, off_t at))                   \
    X(preadv2, ssize_t, (int fd, const struct iovec *parts, int count, off_t at, int flags))       \
    X(__read_chk, ssize_t, (int fd, void *buf, size_t n, size_t room))                             \
    X(__pread_chk, ssize_t, (int fd, void *buf, size_t n, off_t at, size_t room))                  \
    /* mapping: map.c */                                                                           \
    X(mmap, void *, (void *at, size_t n, int prot, int flags, int fd, off_t offset))               \
    /* changing mappings: remap.c */                                                               \
    X(munmap, int, (void *at, size_t n))                                                           \
    X(mremap, void *, (void *at, size_t n, size_t wanted, int flags, ...))                         \
    X(mprotect, int, (void *at, size_t n, int prot))                                               \
    X(pkey_mprotect, int, (void *at, size_t n, int prot, int key))                                 \
    X(madvise, int, (void *at, size_t n, int advice))                                              \
    X(posix_madvise, int, (void *at, size_t n, int advice))                                        \
    X(mlock, int, (const void *at, size_t n))                                                      \
    X(mlock2, int, (const void *at, size_t n, unsigned flags))                                     \
    X(mlockall, int, (int flags))                                                                  \
    X(munlockall, int, (void))                                                                     \
    X(remap_file_pages, int, (void *at, size_t n, int prot, size_t page, int flags))               \
    /* descriptors: descriptors.c */                                                               \
    X(close, int, (int fd))                                                                        \
    X(close_range, int, (unsigned first, unsigned last, int flags))                                \
    X(closefrom, void, (int first))                                                                \
    X(fclose, int, (FILE * stream))                                                                \
    X(fcloseall, int, (void))                                                                      \
    X(dup, int, (int fd))                                                                          \
    X(dup2, int, (int fd, int fresh))                                                              \
    X(dup3, int, (int fd, int fresh, int flags))                                                   \
    X(fcntl, int, (int fd, int command, ...))                                                      \
    X(flock, int, (int fd, int operation))                                                         \
    X(lockf, int, (int fd, int command, off_t length))                                             \
    X(lseek, off_t, (int fd, off_t offset, int whence))                                            \
    X(fdopen, FILE *, (int fd, const char *mode))                                                  \
    X(sendfile, ssize_t, (int to, int from, off_t *at, size_t n))                                  \
    X(splice, ssize_t, (int from, off64_t *at, int to, off64_t *to_at, size_t n, unsigned flags))  \
    X(copy_file_range, ssize_t,                                                                    \
      (int from, off64_t *at, int to, off64_t *to_at, size_t n, unsigned flags))                   \
    X(fork, pid_t, (void))                                                                         \
    /* attributes: stat.c */                                                                       \
    X(stat, int, (const char *path, struct stat *st))                                              \
    X(lstat, int, (const char *path, struct stat *st))                                             \
    X(fstat, int, (int fd, struct stat *st))                                                       \
    X(fstatat, int, (int dir, const char *path, struct stat *st, int flags))                       \
    X(statx, int, (int dir, const char *path, int flags, unsigned mask, struct statx *st))         \
    X(__xstat, int, (int version, const char *path, struct stat *st))                              \
    X(__lxstat, int, (int version, const char *path, struct stat *st))                             \
    X(__fxstat, int, (int version, int fd, struct stat *st))                                       \
    X(__fxstatat, int, (int version, int dir, const char *path, struct stat *st, int flags))       \
    /* names: names.c */                                                                           \
    X(rename, int, (const char *from, const char *to))                                             \
    X(renameat, int, (int fromdir, const char *from, int todir, const char *to))                   \
    X(renameat2, int, (int fromdir, const char *from, int todir, const char *to, unsigned flags))  \
    X(link, int, (const char *from, const char *to))                                               \
    X(linkat, int, (int fromdir, const char *from, int todir, const char *to, int flags))          \
    X(unlink, int, (const char *path))                                                             \
    X(unlinkat, int, (int dir, const char *path, int flags))                                       \
    X(remove, int, (const char *path))                                                             \
    X(rmdir, int, (const char *path))                                                              \
    X(mkdir, int, (const char *path, mode_t mode))                                                 \
    X(mkdirat, int, (int dir, const char *path, mode_t mode))                                      \
    X(mkdtemp, char *, (char *name))                                                               \
    X(symlink, int, (const char *target, const char *path))                                        \
    X(symlinkat, int, (const char *target, int dir, const char *path))                             \
    X(mkfifo, int, (const char *path, mode_t mode))                                                \
    X(mkfifoat, int, (int dir, const char *path, mode_t mode))                                     \
    X(mknod, int, (const char *path, mode_t mode, dev_t device))                                   \
    X(mknodat, int, (int dir, const char *path, mode_t mode, dev_t device))                        \
    X(__xmknod, int, (int version, const char *path, mode_t mode, dev_t *device))                  \
    X(__xmknodat, int, (int version, int dir, const char *path, mode_t mode, dev_t *device))       \
    X(bind, int, (int fd, const struct sockaddr *address, socklen_t n))                            \
    /* content and attributes, by name or descriptor: change.c */                                  \
    X(truncate, int, (const char *path, off_t length))                                             \
    X(chmod, int, (const char *path, mode_t mode))                                                 \
    X(lchmod, int, (const char *path, mode_t mode))                                                \
    X(fchmod, int, (int fd, mode_t mode))                                                          \
    X(fchmodat, int, (int dir, const char *path, mode_t mode, int flags))                          \
    X(chown, int, (const char *path, uid_t uid, gid_t gid))                                        \
    X(lchown, int, (const char *path, uid_t uid, gid_t gid))                                       \
    X(fchown, int, (int fd, uid_t uid, gid_t gid))                                                 \
    X(fchownat, int, (int dir, const char *path, uid_t uid, gid_t gid, int flags))                 \
    X(utime, int, (const char *path, const struct utimbuf *times))                                 \
    X(utimes, int, (const char *path, const struct timeval times[2]))                              \
    X(lutimes, int, (const char *path, const struct timeval times[2]))                             \
    X(futimes, int, (int fd, const struct timeval times[2]))                                       \
    X(futimesat, int, (int dir, const char *path, const struct timeval times[2]))                  \
    X(utimensat, int, (int dir, const char *path, const struct timespec times[2], int flags))      \
    X(futimens, int, (int fd, const struct timespec times[2]))                                     \
    X(setxattr, int, (const char *path, const char *name, const void *value, size_t n, int flags)) \
    X(lsetxattr, int,                                                                              \
      (const char *path, const char *name, const void *value, size_t n, int flags))                \
    X(fsetxattr, int, (int fd, const char *name, const void *value, size_t n, int flags))          \
    X(removexattr, int, (const char *path, const char *name))                                      \
    X(lremovexattr, int, (const char *path, const char *name))                                     \
    X(fremovexattr, int, (int fd, const char *name))                                               \
    X(fgetxattr, ssize_t, (int fd, const char *name, void *value, size_t n))                       \
    X(flistxattr, ssize_t, (int fd, char *list, size_t n))                                         \
    X(getxattr, ssize_t, (const char *path, const char *name, void *value, size_t n))              \
    X(listxattr, ssize_t, (const char *path, char *list, size_t n))                                \
    /* questions about names and attributes: look.c, directories.c, filesystem.c */                \
    X(access, int, (const char *path, int mode))                                                   \
    X(eaccess, int, (const char *path, int mode))                                                  \
    X(euidaccess, int, (const char *path, int mode))                                               \
    X(faccessat, int, (int dir, const char *path, int mode, int flags))                            \
    X(readlink, ssize_t, (const char *path, char *target, size_t n))                               \
    X(readlinkat, ssize_t, (int dir, const char *path, char *target, size_t n))                    \
    X(__readlink_chk, ssize_t, (const char *path, char *target, size_t n, size_t size))            \
    X(__readlinkat_chk, ssize_t, (int dir, const char *path, char *target, size_t n, size_t size)) \
    X(realpath, char *, (const char *path, char *resolved))                                        \
    X(__realpath_chk, char *, (const char *path, char *resolved, size_t size))                     \
    X(canonicalize_file_name, char *, (const char *path))                                          \
    X(opendir, DIR *, (const char *path))                                                          \
    X(readdir, struct dirent *, (DIR * d))                                                         \
    X(readdir_r, int, (DIR * d, struct dirent * entry, struct dirent * *result))                   \
    X(rewinddir, void, (DIR * d))                                                                  \
    X(telldir, long, (DIR * d))                                                                    \
    X(seekdir, void, (DIR * d, long at))                                                           \
    X(dirfd, int, (DIR * d))                                                                       \
    X(closedir, int, (DIR * d))                                                                    \
    X(scandir, int,                                                                                \
      (const char *path, struct dirent ***names, int (*choose)(const struct dirent *),             \
       int (*compare)(const struct dirent **, const struct dirent **)))                            \
    X(scandirat, int,                                                                              \
      (int dir, const char *path, struct dirent ***names, int (*choose)(const struct dirent *),    \
       int (*compare)(const struct dirent **, const struct dirent **)))                            \
    X(statfs, int, (const char *path, struct statfs *f))                                           \
    X(fstatfs, int, (int fd, struct statfs *f))                                                    \
    X(statvfs, int, (const char *path, struct statvfs *f))                                         \
    X(fstatvfs, int, (int fd, struct statvfs *f))                                                  \
    X(name_to_handle_at, int,                                                                      \
      (int dir, const char *path, struct file_handle *handle, int *mount, int flags))              \
    X(ioctl, int, (int fd, unsigned long request, ...))                                            \
    X(inotify_add_watch, int, (int fd, const char *path, uint32_t mask))                           \
    /* directory, root, namespaces and rights: cwd.c, place.c */                                   \
    X(chdir, int, (const char *path))                                                              \
    X(fchdir, int, (int fd))                                                                       \
    X(chroot, int, (const char *path))                                                             \
    X(clone, int, (int (*run)(void *), void *stack, int flags, void *data, ...))                   \
    X(capset, int, (void *header, const void *data))                                               \
    X(setgroups, int, (size_t n, const gid_t *groups))                                             \
    X(initgroups, int, (const char *user, gid_t group))                                            \
    X(setgid, int, (gid_t gid))                                                                    \
    X(setegid, int, (gid_t gid))                                                                   \
    X(setregid, int, (gid_t real, gid_t effective))                                                \
    X(setresgid, int, (gid_t real, gid_t effective, gid_t saved))                                  \
    X(unshare, int, (int flags))                                                                   \
    X(setns, int, (int fd, int type))

/* Functions that the library calls but does not interpose. The library looks them up when it is
 * loaded. If it were linked to them, it would require a newer libc. The pthread functions start
 * the thread of move.c. __tsan_init exists only under ThreadSanitizer. */
#define MONARCH_FOUND(F)                                                                  \
    F(fdopendir, DIR *, (int fd))                                                         \
    F(pthread_create, int,                                                                \
      (pthread_t * thread, const pthread_attr_t *attr, void *(*run)(void *), void *data)) \
    F(pthread_attr_init, int, (pthread_attr_t * attr))                                    \
    F(pthread_attr_destroy, int, (pthread_attr_t * attr))                                 \
    F(pthread_attr_setstacksize, int, (pthread_attr_t * attr, size_t n))                  \
    F(pthread_attr_setdetachstate, int, (pthread_attr_t * attr, int state))               \
    F(__tsan_init, void, (void))

/* Gives a function a second name. The headers declare the two functions with different types of
 * the same layout. The assembler's `.set` ignores types, so it can make the alias. Each file of
 * calls/ has its TWIN lines at its end. */
#define TWIN(alias, name) __asm__(".globl " #alias "\n.set " #alias ", " #name);

#define X(name, ret, args) typedef ret(*name##_call) args;
MONARCH_CALLS(X)
MONARCH_FOUND(X)
#undef X

#define X(name, ret, args) void *name;
struct real_calls {
    MONARCH_CALLS(X)
    MONARCH_FOUND(X)
};
#undef X

extern struct real_calls monarch_real HIDDEN;
/* The path in LD_PRELOAD by which this library was loaded. */
extern const char *monarch_library HIDDEN;
__attribute__((cold)) void monarch_real_init(void) HIDDEN;
__attribute__((cold)) void *monarch_real_find(void **at, const char *name) HIDDEN;

/* Returns the function whose address is in *at. Returns NULL if *at is 0 (not looked up yet) or 1
 * (ABSENT in real.c: no library defines the function). */
static inline void *monarch_real_if_found(void **at) {
    void *found = __atomic_load_n(at, __ATOMIC_RELAXED);
    return __builtin_expect((uintptr_t)found > 1, 1) ? found : NULL;
}

static inline void *monarch_real_of(void **at, const char *name) {
    void *found = monarch_real_if_found(at);
    return __builtin_expect(found != NULL, 1) ? found : monarch_real_find(at, name);
}

/* The function `name` of a library that was loaded after this one, or NULL if no such library
 * defines it. The first use of this macro looks the function up. This may happen before this
 * library's constructor has run, because other libraries' constructors may call interposed
 * functions. */
#define REAL(name) ((name##_call)monarch_real_of(&monarch_real.name, #name))
/* The function `name` if it has been looked up before, otherwise NULL. For callers whose stack may
 * be too small for a look-up. */
#define REAL_IF_FOUND(name) ((name##_call)monarch_real_if_found(&monarch_real.name))

/* Converts the result of a raw system call into what libc returns: for an error, -1 with errno
 * set. */
static inline long monarch_result(long r) {
    if (r >= 0)
        return r;
    errno = (int)-r;
    return -1;
}
