/* The table of the interposed calls. For each call there is a wrapper, which makes the call with
 * one path or descriptor. */
#include "processes.h"

#include <dirent.h>
#include <limits.h>
#include <linux/fs.h>
#include <sched.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <utime.h>

static const struct timespec times[2] = {{1500000000, 111}, {1500000001, 222}};
static const struct timeval timevals[2] = {{1500000000, 111}, {1500000001, 222}};
static const struct utimbuf seconds = {1500000000, 1500000001};
static const char *volatile no_path; /* a null pointer that the compiler does not recognize */
static const char *other;            /* the second path of calls that take two */
static int other_dir;
static struct stat st;
static struct statx stx;

int __open_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);

static long stream(FILE *f) { return f ? (long)(intptr_t)f : -1; }
/* Calls dirfd, because a DIR with a listing from the catalog has no descriptor before this call. */
static long listing(DIR *d) { return d && dirfd(d) >= 0 ? (long)(intptr_t)d : -1; }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored \
    "-Wdeprecated-declarations" /* readdir_r, which programs still call */
static long read_through(DIR *d) {
    struct dirent entry, *e = &entry;
    int error = errno, here = 0;
    if (!d)
        return -1;
    while (readdir(d))
        ;
    rewinddir(d);
    seekdir(d, telldir(d));
    while (readdir_r(d, &entry, &e) == 0 && e)
        here += strcmp(e->d_name, ".") == 0;
    errno = error;
    return closedir(d) == 0 && here == 1 ? 0 : -1;
}
#pragma GCC diagnostic pop
static struct dirent **names;
static long freed(int n) {
    for (int i = 0; i < n; i++)
        free(names[i]);
    if (n >= 0)
        free(names);
    return n < 0 ? -1 : 0;
}

/* Removes the new file within the wrapper, because no other code knows the file's name. */
static long made(int fd, const char *path) {
    return fd >= 0 && syscall(SYS_unlink, path) != 0 ? -2 : fd;
}
static char template[8192];
static char *template_of(const char *path, const char *end) {
    return strcat(strcpy(template, path), end);
}

#define CALL(name, call)                                 \
    static long call_##name(int dir, const char *path) { \
        (void)dir, (void)path;                           \
        return (long)(call);                             \
    }

CALL(open, open(path, O_RDONLY))
CALL(open64, open64(path, O_RDONLY | O_CLOEXEC))
CALL(open_nofollow, open(path, O_RDONLY | O_NOFOLLOW))
CALL(open_path, open(path, O_PATH))
CALL(open_2, __open_2(path, O_RDONLY))
CALL(openat, openat(dir, path, O_RDONLY))
CALL(openat64, openat64(dir, path, O_RDONLY))
CALL(openat_2, __openat_2(dir, path, O_RDONLY))
CALL(fopen, stream(fopen(path, "r")))
CALL(fopen64, stream(fopen64(path, "rbe")))
static long closed(FILE *f) { return f ? fclose(f) : -1; }
CALL(fclose, closed(fopen(path, "r")))
CALL(freopen, stream(freopen(path, "r", fopen("/dev/null", "r"))))
/* A program that has crashed may read /proc in its signal handler, which may run on a small
 * stack. */
CALL(open_proc, open("/proc/self/maps", O_RDONLY))
CALL(fopen_proc, stream(fopen("/proc/self/maps", "r")))
CALL(stat_proc, stat("/proc/self/maps", &st))
CALL(stat, stat(path, &st))
CALL(stat64, stat64(path, (void *)&st))
CALL(lstat, lstat(path, &st))
CALL(fstatat, fstatat(dir, path, &st, 0))
CALL(fstatat_nofollow, fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW))
CALL(statx, statx(dir, path, 0, STATX_BASIC_STATS, &stx))
CALL(statx_more, statx(dir, path, 0, STATX_ALL | STATX_MNT_ID, &stx))
CALL(getxattr, getxattr(path, "user.a", NULL, 0))
CALL(listxattr, listxattr(path, NULL, 0))
CALL(opendir, listing(opendir(path)))
CALL(readdir, read_through(opendir(path)))
CALL(scandir, freed(scandir(path, &names, NULL, alphasort)))
CALL(scandirat, freed(scandirat(dir, path, &names, NULL, NULL)))
static struct statfs stfs;
static struct statvfs stvfs;
ssize_t __readlink_chk(const char *path, char *target, size_t n, size_t size);
ssize_t __readlinkat_chk(int dir, const char *path, char *target, size_t n, size_t size);
char *__realpath_chk(const char *path, char *resolved, size_t size);
static char target[100];
CALL(access, access(path, F_OK))
CALL(access_read, access(path, R_OK))
CALL(access_write, access(path, W_OK))
CALL(access_wrong, access(path, 64))
CALL(eaccess, eaccess(path, R_OK))
CALL(euidaccess, euidaccess(path, X_OK))
CALL(faccessat, faccessat(dir, path, R_OK, 0))
CALL(faccessat_effective, faccessat(dir, path, F_OK, AT_EACCESS | AT_SYMLINK_NOFOLLOW))
CALL(readlink, readlink(path, target, sizeof target))
CALL(readlinkat, readlinkat(dir, path, target, 3))
CALL(readlink_chk, __readlink_chk(path, target, sizeof target, sizeof target))
CALL(readlinkat_chk, __readlinkat_chk(dir, path, target, 1, sizeof target))
static char resolved[PATH_MAX];
/* Restores errno after a success, because libc's function may have called readlink, which may have
 * failed and set errno. */
static long is_resolved(const char *name, int old_errno) {
    if (name)
        errno = old_errno;
    return name ? 0 : -1;
}
static long is_canonical(const char *path) {
    int old_errno = errno;
    char *name = canonicalize_file_name(path);
    long r = is_resolved(name, old_errno);
    free(name);
    return r;
}
static long is_real(const char *path) {
    int old_errno = errno;
    return is_resolved(realpath(path, resolved), old_errno);
}
static long is_real_checked(const char *path) {
    int old_errno = errno;
    return is_resolved(__realpath_chk(path, resolved, sizeof resolved), old_errno);
}
CALL(realpath, is_real(path))
CALL(realpath_chk, is_real_checked(path))
CALL(canonicalize_file_name, is_canonical(path))
CALL(statfs, statfs(path, &stfs))
CALL(statfs64, statfs64(path, (void *)&stfs))
CALL(statvfs, statvfs(path, &stvfs))
static long watched(const char *path) {
    int fd = inotify_init(), r = inotify_add_watch(fd, path, IN_MODIFY), error = errno;
    syscall(SYS_close, fd);
    errno = error;
    return r < 0 ? -1 : 0;
}
CALL(inotify_add_watch, watched(path))

CALL(open_rdwr, open(path, O_RDWR))
CALL(open_append, openat(dir, path, O_WRONLY | O_APPEND))
CALL(open_trunc, open(path, O_WRONLY | O_TRUNC))
CALL(fopen_rplus, stream(fopen(path, "r+")))
CALL(fopen_a, stream(fopen(path, "a")))
CALL(truncate, truncate(path, 100))
CALL(chmod, chmod(path, 0640))
CALL(lchmod, lchmod(path, 0640))
CALL(fchmodat, fchmodat(dir, path, 0640, 0))
CALL(chown, chown(path, getuid(), getgid()))
CALL(lchown, lchown(path, getuid(), getgid()))
CALL(fchownat, fchownat(dir, path, getuid(), getgid(), 0))
CALL(utime, utime(path, &seconds))
CALL(utimes, utimes(path, timevals))
CALL(lutimes, lutimes(path, timevals))
CALL(futimesat, futimesat(dir, path, timevals))
CALL(utimensat, utimensat(dir, path, times, 0))
CALL(setxattr, setxattr(path, "user.a", "b", 1, 0))
CALL(lsetxattr, lsetxattr(path, "user.c", "b", 1, 0))
CALL(removexattr, removexattr(path, "user.a"))
CALL(lremovexattr, lremovexattr(path, "user.c"))

static long add_open(const char *path) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    int error = posix_spawn_file_actions_addopen(&actions, 9, path, O_RDWR, 0);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}
CALL(addopen, add_open(path))

CALL(creat, creat(path, 0644))
CALL(open_creat, open(path, O_RDWR | O_CREAT | O_EXCL, 0644))
CALL(openat_creat, openat(dir, path, O_WRONLY | O_CREAT | O_TRUNC, 0600))
CALL(fopen_w, stream(fopen(path, "w")))
CALL(freopen_w, stream(freopen(path, "w", fopen("/dev/null", "r"))))
CALL(mkstemp, made(mkstemp(template_of(path, "XXXXXX")), template))
CALL(mkostemp, made(mkostemp(template_of(path, "XXXXXX"), O_CLOEXEC), template))
CALL(mkstemps, made(mkstemps(template_of(path, "XXXXXX.x"), 2), template))
CALL(mkostemps, made(mkostemps(template_of(path, "XXXXXX.x"), 2, O_APPEND), template))

/* Removes what the call has made, before the wrapper returns. */
static long gone(int r, const char *path, int flags) {
    return r == 0 ? syscall(SYS_unlinkat, AT_FDCWD, path, flags) : r;
}
static long gone_at(int r, int dir, const char *path, int flags) {
    return r == 0 ? syscall(SYS_unlinkat, dir, path, flags) : r;
}
static long bound(const char *path) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof name.sun_path)
        return -1;
    strcpy(name.sun_path, path);
    int fd = (int)syscall(SYS_socket, AF_UNIX, SOCK_STREAM, 0);
    int r = bind(fd, (void *)&name, sizeof name), error = errno;
    syscall(SYS_close, fd);
    if (r == 0)
        syscall(SYS_unlink, path);
    errno = error;
    return r;
}
CALL(mkdir, gone(mkdir(path, 0700), path, AT_REMOVEDIR))
CALL(mkdirat, gone_at(mkdirat(dir, path, 0700), dir, path, AT_REMOVEDIR))
CALL(mkdtemp, mkdtemp(template_of(path, "XXXXXX")) ? syscall(SYS_rmdir, template) : -1)
CALL(symlink, gone(symlink("f", path), path, 0))
CALL(symlinkat, gone_at(symlinkat("f", dir, path), dir, path, 0))
CALL(mkfifo, gone(mkfifo(path, 0600), path, 0))
CALL(mkfifoat, gone_at(mkfifoat(dir, path, 0600), dir, path, 0))
CALL(mknod, gone(mknod(path, S_IFIFO | 0600, 0), path, 0))
CALL(mknodat, gone_at(mknodat(dir, path, S_IFREG | 0600, 0), dir, path, 0))
CALL(bind, bound(path))

CALL(unlink, unlink(path))
CALL(unlinkat, unlinkat(dir, path, 0))
CALL(remove, remove(path))
CALL(rmdir, rmdir(path))
CALL(unlinkat_dir, unlinkat(dir, path, AT_REMOVEDIR))
CALL(remove_dir, remove(path))
CALL(rename, rename(path, other))
CALL(renameat, renameat(dir, path, other_dir, other))
CALL(renameat2, renameat2(dir, path, other_dir, other, RENAME_NOREPLACE))
CALL(link, link(path, other))
CALL(linkat, linkat(dir, path, other_dir, other, 0))
CALL(chdir, chdir(path))

/* --- by descriptor --- */

ssize_t __read_chk(int fd, void *buf, size_t n, size_t room);
ssize_t __pread_chk(int fd, void *buf, size_t n, off_t at, size_t room);

static char bytes[128];
static const struct iovec parts[2] = {{bytes, 30}, {bytes + 30, 40}};

/* Returns 0 instead of a count, because clean_up would close a positive result as a descriptor. */
static long none(long result) { return result < 0 ? -1 : 0; }
static long unmapped(void *at) { return at == MAP_FAILED ? -1 : syscall(SYS_munmap, at, 100); }
static int spare(int fd) { return (int)syscall(SYS_fcntl, fd, F_DUPFD, 60); }
static int closed_range(int fd) { return close_range((unsigned)fd, (unsigned)fd, 0); }
static int closed_from(int fd) {
    closefrom(fd);
    return 0;
}
static long forked(void) {
    pid_t child = fork();
    if (!child)
        syscall(SYS_exit_group, 0);
    return child < 0 ? -1 : none(syscall(SYS_wait4, child, NULL, 0, NULL));
}

CALL(read, none(read(dir, bytes, 64)))
CALL(pread, none(pread(dir, bytes, 64, 10)))
CALL(readv, none(readv(dir, parts, 2)))
CALL(preadv, none(preadv(dir, parts, 2, 10)))
CALL(preadv2, none(preadv2(dir, parts, 2, 10, 0)))
CALL(read_chk, none(__read_chk(dir, bytes, 64, sizeof bytes)))
CALL(pread_chk, none(__pread_chk(dir, bytes, 64, 10, sizeof bytes)))
CALL(mmap, unmapped(mmap(NULL, 100, PROT_READ, MAP_PRIVATE, dir, 0)))
/* Maps the file, makes the call on the mapping, and unmaps it. */
static long mapped(int fd, int (*act)(char *at)) {
    char *at = mmap(NULL, 100, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED)
        return -1;
    int r = act(at), error = errno;
    syscall(SYS_munmap, at, 4096);
    errno = error;
    return r;
}
static int moved(char *at) {
    char *to = mremap(at, 4096, 8192, MREMAP_MAYMOVE);
    if (to == MAP_FAILED)
        return -1;
    syscall(SYS_munmap, to, 8192);
    return 0;
}
static int unmapped_again(char *at) { return munmap(at, 4096); }
static int writable(char *at) { return mprotect(at, 4096, PROT_READ | PROT_WRITE); }
static int with_key(char *at) { return pkey_mprotect(at, 4096, PROT_READ | PROT_WRITE, -1); }
static int advised(char *at) { return madvise(at, 4096, MADV_RANDOM); }
static int advised_posix(char *at) {
    return posix_madvise(at, 4096, POSIX_MADV_SEQUENTIAL) ? -1 : 0;
}
static int is_locked(char *at) { return mlock(at, 100); }
static int is_locked_2(char *at) { return mlock2(at, 100, 0); }
/* mlockall gets an invalid flag, because the program may not have the right to lock all of its
 * memory. */
static int locked_all(char *at) {
    int r = mlockall(0x80 /* no such flag */), error = errno;
    munlockall();
    errno = error;
    return r + (at == NULL);
}
static int remapped(char *at) { return remap_file_pages(at, 4096, 0, 0, 0); }

CALL(munmap, mapped(dir, unmapped_again))
CALL(mremap, mapped(dir, moved))
CALL(mprotect, mapped(dir, writable))
CALL(pkey_mprotect, mapped(dir, with_key))
CALL(madvise, mapped(dir, advised))
CALL(posix_madvise, mapped(dir, advised_posix))
CALL(mlock, mapped(dir, is_locked))
CALL(mlock2, mapped(dir, is_locked_2))
CALL(mlockall, mapped(dir, locked_all))
CALL(remap_file_pages, mapped(dir, remapped))
CALL(lseek, lseek(dir, 0, SEEK_SET))
CALL(dup, dup(dir))
CALL(dup2, dup2(dir, 50))
CALL(dup3, dup3(dir, 50, O_CLOEXEC))
CALL(fcntl, fcntl(dir, F_DUPFD_CLOEXEC, 20))
CALL(fcntl_flags, none(fcntl(dir, F_GETFL)))
CALL(flock, flock(dir, LOCK_SH))
static long asked(int fd, unsigned long request) {
    long answer = 0;
    return ioctl(fd, request, &answer);
}
CALL(ioctl, asked(dir, FIONREAD))
CALL(ioctl_flags, asked(dir, FS_IOC_GETFLAGS))
static long handle_of(int fd) {
    struct {
        struct file_handle head;
        unsigned char room[MAX_HANDLE_SZ];
    } handle = {.head = {.handle_bytes = MAX_HANDLE_SZ}};
    int mount;
    return name_to_handle_at(fd, "", &handle.head, &mount, AT_EMPTY_PATH);
}
CALL(name_to_handle_at, handle_of(dir))
CALL(fstatfs, fstatfs(dir, &stfs))
CALL(fstatvfs, fstatvfs(dir, &stvfs))
CALL(lockf, lockf(dir, F_TEST, 0))
static int null_device(void) { return (int)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_WRONLY); }
static long sent(long (*send)(int, int), int from) {
    int to = null_device();
    long r = none(send(to, from));
    int error = errno;
    syscall(SYS_close, to);
    errno = error;
    return r;
}
static long by_sendfile(int to, int from) { return sendfile(to, from, NULL, 10); }
static long by_splice(int to, int from) { return splice(from, NULL, to, NULL, 10, 0); }
static long by_range(int to, int from) { return copy_file_range(from, NULL, to, NULL, 10, 0); }

CALL(sendfile, sent(by_sendfile, dir))
CALL(splice, sent(by_splice, dir))
CALL(copy_file_range, sent(by_range, dir))
static long streamed(FILE *f) { return f ? fclose(f) : -1; }
CALL(fdopen, streamed(fdopen(spare(dir), "r")))
CALL(close, close(spare(dir)))
CALL(close_range, closed_range(spare(dir)))
CALL(closefrom, closed_from(spare(dir)))
CALL(fork, forked())
CALL(fstat, fstat(dir, &st))
CALL(fstatat_empty, fstatat(dir, "", &st, AT_EMPTY_PATH))
CALL(statx_empty, statx(dir, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &stx))
CALL(fstatat_null, fstatat(dir, no_path, &st, AT_EMPTY_PATH))
CALL(statx_null, statx(dir, no_path, AT_EMPTY_PATH, STATX_BASIC_STATS, &stx))
CALL(futimesat_null, futimesat(dir, no_path, timevals))
CALL(utimensat_null, utimensat(dir, no_path, times, 0))
CALL(utimensat_empty, utimensat(dir, "", times, AT_EMPTY_PATH))
CALL(fchmod, fchmod(dir, 0600))
CALL(fchown, fchown(dir, getuid(), getgid()))
CALL(fchownat_empty, fchownat(dir, "", getuid(), getgid(), AT_EMPTY_PATH))
CALL(futimes, futimes(dir, timevals))
CALL(futimens, futimens(dir, times))
CALL(fsetxattr, fsetxattr(dir, "user.a", "b", 1, 0))
CALL(fremovexattr, fremovexattr(dir, "user.a"))
CALL(fgetxattr, fgetxattr(dir, "user.a", NULL, 0))
CALL(flistxattr, flistxattr(dir, NULL, 0))
CALL(unshare, unshare(0))

const struct call calls[] = {
    {"open", OPENS, 0, call_open},
    {"open64", OPENS, 0, call_open64},
    {"open O_NOFOLLOW", OPENS, 0, call_open_nofollow},
    {"open O_PATH", OPENS, 0, call_open_path},
    {"__open_2", OPENS, 0, call_open_2},
    {"openat", OPENS, 1, call_openat},
    {"openat64", OPENS, 1, call_openat64},
    {"__openat_2", OPENS, 1, call_openat_2},
    {"fopen", STREAMS, 0, call_fopen},
    {"fopen64", STREAMS, 0, call_fopen64},
    {"fclose", LOOKS, 0, call_fclose},
    {"freopen", STREAMS, 0, call_freopen},
    {"open /proc", OPENS, 0, call_open_proc},
    {"fopen /proc", STREAMS, 0, call_fopen_proc},
    {"stat /proc", LOOKS, 0, call_stat_proc},
    {"stat", LOOKS, 0, call_stat},
    {"stat64", LOOKS, 0, call_stat64},
    {"lstat", LOOKS, 0, call_lstat},
    {"fstatat", LOOKS, 1, call_fstatat},
    {"fstatat AT_SYMLINK_NOFOLLOW", LOOKS, 1, call_fstatat_nofollow},
    {"statx", LOOKS, 1, call_statx},
    {"statx STATX_ALL", LOOKS, 1, call_statx_more},
    {"getxattr", LOOKS, 0, call_getxattr},
    {"listxattr", LOOKS, 0, call_listxattr},
    {"opendir", LISTS, 0, call_opendir},
    {"readdir", ENTERS, 0, call_readdir},
    {"scandir", ENTERS, 0, call_scandir},
    {"scandirat", ENTERS, 1, call_scandirat},
    {"access F_OK", LOOKS, 0, call_access},
    {"access R_OK", LOOKS, 0, call_access_read},
    {"access W_OK", LOOKS, 0, call_access_write},
    {"access 64", LOOKS, 0, call_access_wrong},
    {"eaccess", LOOKS, 0, call_eaccess},
    {"euidaccess", LOOKS, 0, call_euidaccess},
    {"faccessat", LOOKS, 1, call_faccessat},
    {"faccessat AT_EACCESS", LOOKS, 1, call_faccessat_effective},
    {"readlink", LOOKS, 0, call_readlink},
    {"readlinkat", LOOKS, 1, call_readlinkat},
    {"__readlink_chk", LOOKS, 0, call_readlink_chk},
    {"__readlinkat_chk", LOOKS, 1, call_readlinkat_chk},
    {"realpath", LOOKS, 0, call_realpath},
    {"__realpath_chk", LOOKS, 0, call_realpath_chk},
    {"canonicalize_file_name", LOOKS, 0, call_canonicalize_file_name},
    {"statfs", LOOKS, 0, call_statfs},
    {"statfs64", LOOKS, 0, call_statfs64},
    {"statvfs", LOOKS, 0, call_statvfs},
    {"inotify_add_watch", LOOKS, 0, call_inotify_add_watch},
    {"open O_RDWR", CHANGES, 0, call_open_rdwr},
    {"openat O_APPEND", CHANGES, 1, call_open_append},
    {"open O_TRUNC", CHANGES, 0, call_open_trunc},
    {"fopen r+", CHANGES, 0, call_fopen_rplus},
    {"fopen a", CHANGES, 0, call_fopen_a},
    {"truncate", CHANGES, 0, call_truncate},
    {"chmod", CHANGES, 0, call_chmod},
    {"lchmod", CHANGES, 0, call_lchmod},
    {"fchmodat", CHANGES, 1, call_fchmodat},
    {"chown", CHANGES, 0, call_chown},
    {"lchown", CHANGES, 0, call_lchown},
    {"fchownat", CHANGES, 1, call_fchownat},
    {"utime", CHANGES, 0, call_utime},
    {"utimes", CHANGES, 0, call_utimes},
    {"lutimes", CHANGES, 0, call_lutimes},
    {"futimesat", CHANGES, 1, call_futimesat},
    {"utimensat", CHANGES, 1, call_utimensat},
    {"setxattr", CHANGES, 0, call_setxattr},
    {"lsetxattr", CHANGES, 0, call_lsetxattr},
    {"removexattr", CHANGES, 0, call_removexattr},
    {"lremovexattr", CHANGES, 0, call_lremovexattr},
    {"creat", MAKES, 0, call_creat},
    {"open O_CREAT", MAKES, 0, call_open_creat},
    {"openat O_CREAT", MAKES, 1, call_openat_creat},
    {"fopen w", MAKES, 0, call_fopen_w},
    {"freopen w", MAKES, 0, call_freopen_w},
    {"mkstemp", MAKES, 0, call_mkstemp},
    {"mkostemp", MAKES, 0, call_mkostemp},
    {"mkstemps", MAKES, 0, call_mkstemps},
    {"mkostemps", MAKES, 0, call_mkostemps},
    {"mkdir", MAKES, 0, call_mkdir},
    {"mkdirat", MAKES, 1, call_mkdirat},
    {"mkdtemp", MAKES, 0, call_mkdtemp},
    {"symlink", MAKES, 0, call_symlink},
    {"symlinkat", MAKES, 1, call_symlinkat},
    {"mkfifo", MAKES, 0, call_mkfifo},
    {"mkfifoat", MAKES, 1, call_mkfifoat},
    {"mknod", MAKES, 0, call_mknod},
    {"mknodat", MAKES, 1, call_mknodat},
    {"bind", MAKES, 0, call_bind},
    {"unlink", TAKES, 0, call_unlink},
    {"unlinkat", TAKES, 1, call_unlinkat},
    {"remove", TAKES, 0, call_remove},
    {"rmdir", TAKES_DIR, 0, call_rmdir},
    {"unlinkat AT_REMOVEDIR", TAKES_DIR, 1, call_unlinkat_dir},
    {"remove of a directory", TAKES_DIR, 0, call_remove_dir},
    {"rename", MOVES, 0, call_rename},
    {"renameat", MOVES, 1, call_renameat},
    {"renameat2", MOVES, 1, call_renameat2},
    {"link", LINKS, 0, call_link},
    {"linkat", LINKS, 1, call_linkat},
    {"chdir", ENTERS, 0, call_chdir},
    {"read", BY_FD, 0, call_read},
    {"pread", BY_FD, 0, call_pread},
    {"readv", BY_FD, 0, call_readv},
    {"preadv", BY_FD, 0, call_preadv},
    {"preadv2", BY_FD, 0, call_preadv2},
    {"__read_chk", BY_FD, 0, call_read_chk},
    {"__pread_chk", BY_FD, 0, call_pread_chk},
    {"mmap", BY_FD, 0, call_mmap},
    {"munmap", BY_FD, 0, call_munmap},
    {"mremap", BY_FD, 0, call_mremap},
    {"mprotect", BY_FD, 0, call_mprotect},
    {"pkey_mprotect", BY_FD, 0, call_pkey_mprotect},
    {"madvise", BY_FD, 0, call_madvise},
    {"posix_madvise", BY_FD, 0, call_posix_madvise},
    {"mlock", BY_FD, 0, call_mlock},
    {"mlock2", BY_FD, 0, call_mlock2},
    {"mlockall, munlockall", BY_FD, 0, call_mlockall},
    {"remap_file_pages", BY_FD, 0, call_remap_file_pages},
    {"lseek", BY_FD, 0, call_lseek},
    {"dup", BY_FD, 0, call_dup},
    {"dup2", BY_FD, 0, call_dup2},
    {"dup3", BY_FD, 0, call_dup3},
    {"fcntl F_DUPFD_CLOEXEC", BY_FD, 0, call_fcntl},
    {"fcntl F_GETFL", BY_FD, 0, call_fcntl_flags},
    {"flock", BY_FD, 0, call_flock},
    {"ioctl", BY_FD, 0, call_ioctl},
    {"ioctl FS_IOC_GETFLAGS", BY_FD, 0, call_ioctl_flags},
    {"name_to_handle_at", BY_FD, 0, call_name_to_handle_at},
    {"fstatfs", BY_FD, 0, call_fstatfs},
    {"fstatvfs", BY_FD, 0, call_fstatvfs},
    {"lockf", BY_FD, 0, call_lockf},
    {"sendfile", BY_FD, 0, call_sendfile},
    {"splice", BY_FD, 0, call_splice},
    {"copy_file_range", BY_FD, 0, call_copy_file_range},
    {"fdopen", BY_FD, 0, call_fdopen},
    {"close", BY_FD, 0, call_close},
    {"close_range", BY_FD, 0, call_close_range},
    {"closefrom", BY_FD, 0, call_closefrom},
    {"fork", BY_FD, 0, call_fork},
    {"fstat", BY_FD, 0, call_fstat},
    {"fstatat AT_EMPTY_PATH", BY_FD, 0, call_fstatat_empty},
    {"statx AT_EMPTY_PATH", BY_FD, 0, call_statx_empty},
    {"fstatat NULL", BY_FD, 0, call_fstatat_null},
    {"statx NULL", BY_FD, 0, call_statx_null},
    {"futimesat NULL", BY_FD, 0, call_futimesat_null},
    {"utimensat NULL", BY_FD, 0, call_utimensat_null},
    {"utimensat AT_EMPTY_PATH", BY_FD, 0, call_utimensat_empty},
    {"fchmod", BY_FD, 0, call_fchmod},
    {"fchown", BY_FD, 0, call_fchown},
    {"fchownat AT_EMPTY_PATH", BY_FD, 0, call_fchownat_empty},
    {"futimes", BY_FD, 0, call_futimes},
    {"futimens", BY_FD, 0, call_futimens},
    {"fsetxattr", BY_FD, 0, call_fsetxattr},
    {"fremovexattr", BY_FD, 0, call_fremovexattr},
    {"fgetxattr", BY_FD, 0, call_fgetxattr},
    {"flistxattr", BY_FD, 0, call_flistxattr},
    {"posix_spawn_file_actions_addopen", CHANGES, 0, call_addopen},
    {"unshare", BY_FD, 0, call_unshare},
    {NULL, OPENS, 0, NULL},
};

void set_other(int dir, const char *path) {
    other_dir = dir;
    other = path;
}
