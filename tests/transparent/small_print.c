/* Makes calls on a descriptor that was opened for reading. Most of the calls fail. Prints the
 * result and the errno of each call. Argument: a directory with the files that test_small_print.py
 * makes. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

enum { ROOM = 1 << 20 };
static char *buf;
static const char *base;
static int fd;
/* Invalid arguments. They are volatile variables, because the compiler would warn about invalid
 * constants. */
static void *volatile bad = (void *)8;
static void *volatile null;
static volatile long minus = -1;

static long say_as(const char *what, long result) {
    printf("%s = %ld %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
    fflush(stdout);
    return result;
}
#define SAY(call) (errno = 0, say_as(#call, (long)(call)))

static const char *in(const char *name) {
    char *path = malloc(strlen(base) + strlen(name) + 2);
    return strcat(strcat(strcpy(path, base), "/"), name);
}

static void tell(const char *what, int of, const char *name) {
    struct stat a, b;
    if (fstat(of, &a) != 0 || stat(in(name), &b) != 0) {
        printf("%s: %s\n", what, strerrorname_np(errno));
        return;
    }
    printf("%s: is it %d, mode %o, %ld bytes, %ld, %ld blocks, %ld links, at %ld, flags %x %d\n",
           what, a.st_ino == b.st_ino && a.st_dev == b.st_dev, a.st_mode, (long)a.st_size,
           (long)a.st_blksize, (long)a.st_blocks, (long)a.st_nlink, (long)lseek(of, 0, SEEK_CUR),
           fcntl(of, F_GETFL), fcntl(of, F_GETFD));
}

static void reads(void) {
    struct iovec parts[IOV_MAX + 1];
    for (int i = 0; i <= IOV_MAX; i++)
        parts[i] = (struct iovec){buf + i * 7, i % 5};
    SAY(readv(fd, parts, IOV_MAX));
    SAY(readv(fd, parts, IOV_MAX + 1));
    SAY(readv(fd, parts, (int)minus));
    SAY(readv(fd, parts, 0));
    SAY(preadv(fd, parts, 3, minus));
    SAY(preadv2(fd, parts, 100, 100, 0));
    SAY(preadv2(fd, parts, 100, -1, 0));
    SAY(preadv2(fd, parts, 100, -1, 0x4000));
    parts[2] = (struct iovec){bad, 10};
    SAY(readv(fd, parts, 4));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(preadv(fd, parts, 4, 0));
    parts[1].iov_len = (size_t)minus;
    SAY(readv(fd, parts, 3));
    SAY(readv(fd, bad, 3));
    SAY(readv(fd, null, 3));
    SAY(pread(fd, buf, 100, 102400));
    SAY(pread(fd, buf, 100, 102399));
    SAY(pread(fd, buf, 100, LONG_MAX));
    SAY(pread(fd, buf, 100, minus));
    SAY(pread(fd, bad, 100, 0));
    SAY(pread(fd, bad, 100, 1 << 20));
    SAY(pread(fd, buf, 0, 0));
    SAY(read(fd, bad, 0));
    SAY(lseek(fd, -5, SEEK_SET));
    SAY(lseek(fd, 5, SEEK_END));
    SAY(read(fd, buf, 10));
    SAY(lseek(fd, LONG_MAX, SEEK_SET));
    SAY(read(fd, buf, 10));
    SAY(lseek(fd, 3, 99));
    SAY(lseek(fd, 0, SEEK_HOLE));
    SAY(lseek(fd, 1 << 30, SEEK_DATA));
    SAY(lseek(fd, 0, SEEK_SET));
}

static void changes(void) {
    SAY(write(fd, "x", 1));
    SAY(pwrite(fd, "x", 1, 0));
    SAY(ftruncate(fd, 3));
    SAY(ftruncate(fd, -3));
    SAY(ftruncate(-1, 3));
    SAY(fallocate(fd, 0, 0, 10));
    SAY(fallocate(fd, 3, 0, 10));
    SAY(fallocate(fd, 0, -1, 10));
    SAY(posix_fallocate(fd, 0, 10));
    SAY(fsync(fd));
    SAY(fdatasync(fd));
    SAY(sync_file_range(fd, 0, 0, 7));
    SAY(posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL));
    SAY(posix_fadvise(fd, 0, 0, 99));
    SAY(posix_fadvise(fd, 0, -1, 1));
    SAY(readahead(fd, 0, 4096));
    SAY(readahead(fd, -1, 4096));
}

static void locks(void) {
    struct flock lock = {.l_type = 77};
    SAY(lockf(fd, F_LOCK, 0));
    SAY(lockf(fd, F_TEST, 0));
    SAY(lockf(fd, 77, 0));
    SAY(lockf(fd, F_ULOCK, 0));
    SAY(lockf(-1, F_TEST, 0));
    SAY(flock(fd, LOCK_UN));
    SAY(flock(-1, LOCK_SH));
    SAY(fcntl(-1, F_SETLK, &lock));
    SAY(fcntl(-1, F_GETLEASE));
    SAY(fcntl(fd, F_SETLK, &lock));
    SAY(fcntl(fd, F_GETLK, &lock));
    lock.l_type = F_WRLCK;
    SAY(fcntl(fd, F_SETLK, &lock));
    SAY(fcntl(fd, F_SETLK, bad));
    SAY(fcntl(fd, F_GETLK, null));
    lock.l_type = F_RDLCK;
    lock.l_pid = 3;
    SAY(fcntl(fd, F_OFD_SETLK, &lock));
    lock.l_whence = 9;
    SAY(fcntl(fd, F_SETLK, &lock));
    lock = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_END, .l_start = -10};
    SAY(fcntl(fd, F_SETLK, &lock));
    lock.l_start = -1000000;
    SAY(fcntl(fd, F_SETLK, &lock));
}

static void controls(void) {
    uint64_t hint = 7;
    int on = 1;
    SAY(fcntl(fd, 9999));
    SAY(fcntl(fd, F_GETPIPE_SZ));
    SAY(fcntl(fd, F_ADD_SEALS, 0));
    SAY(fcntl(fd, F_GET_RW_HINT, &hint));
    SAY(fcntl(fd, F_NOTIFY, 1));
    SAY(fcntl(fd, F_GETOWN));
    SAY(ioctl(fd, FIONREAD, buf));
    printf("%d bytes are left\n", *(int *)buf);
    SAY(ioctl(fd, 0x5401, buf));
    SAY(ioctl(fd, BLKGETSIZE64, buf));
    SAY(ioctl(fd, FIOCLEX));
    SAY(fcntl(fd, F_GETFD));
    SAY(ioctl(fd, FIONCLEX));
    SAY(fcntl(fd, F_GETFD));
    SAY(ioctl(fd, FIONBIO, &on));
    SAY(fcntl(fd, F_GETFL));
    on = 0;
    SAY(ioctl(fd, FIONBIO, &on));
    SAY(isatty(fd));
    SAY(fchdir(fd));
    SAY(openat(fd, "x", O_RDONLY));
    SAY(openat(fd, "", O_RDONLY));
    SAY(fstatat(fd, "x", (struct stat *)buf, 0));
    SAY(fstatat(fd, "", (struct stat *)buf, 0));
    SAY(readlinkat(fd, "x", buf, 10));
    SAY(fdopendir(fd) == NULL);
    SAY(fgetxattr(fd, "user.x", buf, 10));
    SAY(fgetxattr(fd, "bad", buf, 10));
    SAY(flistxattr(fd, buf, 100));
    SAY(fstat(fd, bad));
    SAY(fstat(-1, (struct stat *)buf));
    SAY(statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC | AT_STATX_FORCE_SYNC, 1, (void *)buf));
}

static void maps(void) {
    char *m = mmap(NULL, 200000, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    m[5] = 'Z';
    SAY(m[4096]);
    SAY(msync(m, 4096, MS_SYNC));
    SAY(munmap(m, 200000));
    SAY(mmap(NULL, 10, PROT_READ, MAP_PRIVATE, fd, 100));
    SAY(mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0));
    SAY(mmap(NULL, 10, PROT_WRITE, MAP_SHARED, fd, 0));
    SAY(mmap(NULL, 4096, PROT_READ, MAP_SHARED, -1, 0));
    SAY(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, -4096));
    m = mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, 4096);
    SAY(mprotect(m, 4096, PROT_WRITE));
    SAY(m[4096 + 7]);
}

static void advice(void) {
    static const int given[] = {MADV_NORMAL,   MADV_RANDOM,   MADV_SEQUENTIAL,
                                MADV_WILLNEED, MADV_DONTNEED, 99};
    char *m = mmap(NULL, 3 * 4096, PROT_READ, MAP_PRIVATE, fd, 0), *none = (char *)4096;
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        SAY(madvise(m, 4096, given[i]));
        SAY(madvise(m + 1, 4096, given[i]));
        SAY(madvise(none, 4096, given[i]));
        SAY(posix_madvise(m, 4096, given[i]));
        SAY(posix_madvise(m + 1, 4096, given[i]));
        SAY(posix_madvise(none, 4096, given[i]));
    }
    SAY(mlock(m, 4096));
    SAY(mlock(none, 4096));
    SAY(mlock2(m, 4096, 0));
    SAY(mlock2(m, 4096, 99));
    SAY(munlock(m, 4096));
    SAY(mlockall(0));
    SAY(munlockall());
    SAY(pkey_mprotect(m, 4096, PROT_READ, -1));
    SAY(pkey_mprotect(m, 4096, PROT_READ, 99));
    SAY(remap_file_pages(m, 4096, 0, 1, 0));
    SAY(mremap(m + 1, 4096, 8192, 0) == MAP_FAILED);
    SAY(mremap(m, 3 * 4096, 0, 0) == MAP_FAILED);
    SAY(mremap(m, 3 * 4096, 4096, 0) == m);
    SAY(munmap(m, 4096));
}

/* Calls with a path that leads nowhere. */
static void nowhere(const char *path) {
    struct timeval times[2] = {{1, 1}, {1, 1}};
    struct timespec exact[2] = {{1, 1}, {1, 1}};
    struct utimbuf old = {1, 1};
    struct file_handle handle = {.handle_bytes = 0};
    struct dirent **listed;
    const char *whole = in(path);
    char *template = malloc(strlen(whole) + 8);
    int mount, dir = open(base, O_RDONLY | O_DIRECTORY);
    printf("nowhere: %s\n", path);
    SAY(access(whole, R_OK));
    SAY(eaccess(whole, R_OK));
    SAY(euidaccess(whole, W_OK));
    SAY(faccessat(dir, path, X_OK, AT_EACCESS));
    SAY(chdir(whole));
    SAY(chroot(whole));
    SAY(chmod(whole, 0600));
    SAY(lchmod(whole, 0600));
    SAY(fchmodat(dir, path, 0600, 0));
    SAY(chown(whole, 1, 1));
    SAY(lchown(whole, 1, 1));
    SAY(fchownat(dir, path, 1, 1, AT_SYMLINK_NOFOLLOW));
    SAY(utime(whole, &old));
    SAY(utimes(whole, times));
    SAY(lutimes(whole, times));
    SAY(futimesat(dir, path, times));
    SAY(utimensat(dir, path, exact, 0));
    SAY(utimensat(dir, path, exact, AT_SYMLINK_NOFOLLOW));
    SAY(truncate(whole, 0));
    SAY(creat(whole, 0600));
    SAY(mkdir(whole, 0700));
    SAY(mkdirat(dir, path, 0700));
    SAY(mkfifo(whole, 0600));
    SAY(mkfifoat(dir, path, 0600));
    SAY(mknod(whole, S_IFREG | 0600, 0));
    SAY(mknodat(dir, path, S_IFREG | 0600, 0));
    SAY(link(in("f"), whole));
    SAY(link(whole, in("new")));
    SAY(linkat(dir, path, dir, "new", 0));
    SAY(symlink("f", whole));
    SAY(symlinkat("f", dir, path));
    SAY(rename(whole, in("new")));
    SAY(rename(in("f"), whole));
    SAY(renameat(dir, path, dir, "new"));
    SAY(renameat2(dir, "f", dir, path, RENAME_NOREPLACE));
    SAY(unlink(whole));
    SAY(unlinkat(dir, path, AT_REMOVEDIR));
    SAY(rmdir(whole));
    SAY(remove(whole));
    SAY(getxattr(whole, "user.x", buf, 10));
    SAY(lgetxattr(whole, "user.x", buf, 10));
    SAY(listxattr(whole, buf, 10));
    SAY(llistxattr(whole, buf, 10));
    SAY(setxattr(whole, "user.x", "y", 1, 0));
    SAY(lsetxattr(whole, "user.x", "y", 1, 0));
    SAY(removexattr(whole, "user.x"));
    SAY(lremovexattr(whole, "user.x"));
    SAY(stat(whole, (struct stat *)buf));
    SAY(lstat(whole, (struct stat *)buf));
    SAY(statfs(whole, (struct statfs *)buf));
    SAY(statvfs(whole, (struct statvfs *)buf));
    SAY(readlink(whole, buf, 10));
    SAY(realpath(whole, NULL) == NULL);
    SAY(canonicalize_file_name(whole) == NULL);
    SAY(name_to_handle_at(dir, path, &handle, &mount, 0));
    SAY(inotify_add_watch(inotify_init1(0), whole, IN_MODIFY));
    SAY(scandir(whole, &listed, NULL, NULL));
    SAY(scandirat(dir, path, &listed, NULL, alphasort));
    SAY(mkstemp(strcat(strcpy(template, whole), "XXXXXX")));
    SAY(mkostemp(strcat(strcpy(template, whole), "XXXXXX"), O_CLOEXEC));
    SAY(mkdtemp(strcat(strcpy(template, whole), "XXXXXX")) == NULL);
    close(dir);
}

/* Calls with the invalid descriptor -1, and calls that change the process. */
static void nothing(void) {
    struct timeval times[2] = {{1, 1}, {1, 1}};
    SAY(fchmod(-1, 0600));
    SAY(fchown(-1, 1, 1));
    SAY(futimens(-1, NULL));
    SAY(futimes(-1, times));
    SAY(fsetxattr(-1, "user.x", "y", 1, 0));
    SAY(fremovexattr(-1, "user.x"));
    SAY(fstatfs(-1, (struct statfs *)buf));
    SAY(fstatvfs(-1, (struct statvfs *)buf));
    SAY(open_by_handle_at(-1, bad, O_RDONLY) == -1);
    SAY(setgroups((size_t)minus, NULL) == -1);
    SAY(setgid((gid_t)minus));
    SAY(setegid((gid_t)minus));
    SAY(setregid((gid_t)minus, (gid_t)minus));
    SAY(setresgid((gid_t)minus, (gid_t)minus, (gid_t)minus));
    SAY(setns(-1, 0));
    SAY(unshare(0));
    SAY(unshare(1));
}

static void moves(void) {
    int pipes[2], to = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    off_t at = 10;
    off64_t at64 = 5;
    SAY(pipe(pipes));
    SAY(lseek(fd, 0, SEEK_SET));
    SAY(sendfile(to, fd, &at, 1000));
    SAY(at);
    SAY(sendfile(to, fd, NULL, 1000));
    SAY(lseek(fd, 0, SEEK_CUR));
    at = 102395;
    SAY(sendfile(to, fd, &at, 1000));
    at = -1;
    SAY(sendfile(to, fd, &at, 1000));
    SAY(sendfile(fd, to, NULL, 10));
    SAY(sendfile(to, -1, NULL, 1));
    SAY(splice(fd, &at64, pipes[1], NULL, 100, 0));
    SAY(splice(fd, NULL, pipes[1], NULL, 100, 0));
    SAY(splice(fd, NULL, to, NULL, 100, 0));
    SAY(splice(fd, &at64, pipes[1], &at64, 10, 0));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(copy_file_range(to, NULL, fd, NULL, 10, 0));
    SAY(copy_file_range(fd, NULL, fd, NULL, 10, 0));
    SAY(copy_file_range(fd, &at64, to, NULL, 10, 5));
    SAY(tee(fd, pipes[1], 10, 0));
    struct pollfd polled = {fd, POLLIN | POLLOUT, 0};
    struct epoll_event event = {.events = EPOLLIN};
    SAY(poll(&polled, 1, 0));
    SAY(polled.revents);
    SAY(epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, fd, &event));
}

static void duplicates(void) {
    SAY(dup3(fd, fd, 0));
    SAY(dup2(fd, fd) == fd);
    SAY(fcntl(fd, F_DUPFD, 100));
    SAY(fcntl(fd, F_DUPFD, -1));
    SAY(fcntl(fd, F_DUPFD, 1 << 30));
    SAY(fcntl(fd, F_DUPFD_CLOEXEC, 200));
    tell("duplicate", 200, "f");
    SAY(close(100));
    SAY(close(100));
    SAY(dup2(fd, 1 << 30));
    SAY(dup(-1));
    SAY(dup3(fd, 300, O_CLOEXEC | O_NONBLOCK));
    SAY(syscall(SYS_kcmp, getpid(), getpid(), 0, fd, 200));
}

static void open_as(const char *name, int flags) {
    int opened = open(in(name), flags, 0600);
    printf("open %s %x: %s\n", name, (unsigned)flags, opened < 0 ? strerrorname_np(errno) : "");
    if (opened < 0)
        return;
    tell("  it", opened, name);
    SAY(read(opened, buf, 10));
    close(opened);
}

static void opens(void) {
    static const int flags[] = {O_NOFOLLOW | O_DSYNC,
                                O_NOFOLLOW | O_SYNC,
                                O_PATH,
                                O_PATH | O_CLOEXEC,
                                O_DIRECTORY,
                                O_NOFOLLOW,
                                O_NOATIME,
                                O_SYNC,
                                O_DSYNC | O_CLOEXEC,
                                O_NONBLOCK,
                                O_ASYNC,
                                O_NOCTTY,
                                O_CREAT,
                                O_CREAT | O_EXCL,
                                O_EXCL,
                                O_APPEND,
                                3,
                                O_LARGEFILE,
                                0x40000000,
                                O_TMPFILE};
    static const char *const names[] = {"d",      "d/",      "f/",     "f/.", "d/..",
                                        "d/../f", "nope",    "nope/x", "",    "empty",
                                        "d//x",   "./d/./x", "d/x/"};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        open_as("f", flags[i]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        open_as(names[i], O_RDONLY);
    open_as("d", O_RDWR);
    open_as("d", O_CREAT);
    struct open_how how = {.flags = O_RDONLY};
    int raw = (int)syscall(SYS_openat2, AT_FDCWD, in("f"), &how, sizeof how);
    tell("openat2", raw, "f");
}

static void again(void) {
    static const char *const forms[] = {"/proc/self/fd/%d", "/dev/fd/%d",
                                        "/proc/thread-self/fd/%d"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char name[64];
        struct stat st;
        snprintf(name, sizeof name, forms[i], fd);
        tell(forms[i], open(name, O_RDONLY), "f");
        FILE *stream = fopen(name, "r");
        tell("a stream", fileno(stream), "f");
        SAY(access(name, R_OK));
        SAY(lstat(name, &st));
        SAY(S_ISLNK(st.st_mode));
        SAY(truncate(name, -1));
        SAY(getxattr(name, "user.x", buf, 10));
        SAY(listxattr(name, buf, 0));
    }
}

static void stream_as(const char *name, const char *mode) {
    char text[64] = "";
    errno = 0;
    FILE *f = fopen(in(name), mode);
    printf("fopen %s %s: %s\n", name, mode, strerrorname_np(errno));
    if (!f)
        return;
    printf("flags %x %d\n", fcntl(fileno(f), F_GETFL), fcntl(fileno(f), F_GETFD));
    SAY(fread(text, 1, 20, f));
    SAY(ftell(f));
    SAY(ungetc('Q', f));
    SAY(fgetc(f));
    SAY(fseek(f, -5, SEEK_END));
    SAY(fread(text, 1, 20, f));
    SAY(feof(f));
    rewind(f);
    SAY(lseek(fileno(f), 0, SEEK_CUR));
    SAY(fputc('x', f));
    SAY(ferror(f));
    SAY(fclose(f));
}

static void streams(void) {
    static const char *const modes[] = {"r", "rb", "re", "r,ccs=UTF-8", "re,ccs=UTF-8", "rx", "rz",
                                        "",  "z",  "rc", "rbe",         "r,ccs=NOSUCH"};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        stream_as("f", modes[i]);
    stream_as("nope", "r");
    stream_as("d", "r");
    stream_as("empty", "re");
    FILE *f = fopen(in("f"), "r");
    SAY(fread(buf, 1, 10, f));
    SAY((f = freopen(in("g"), "re", f)) != NULL);
    SAY(fcntl(fileno(f), F_GETFD));
    SAY((f = freopen(NULL, "r", f)) != NULL);
    SAY(fread(buf, 1, 5, f));
    SAY(freopen(in("nope"), "r", f) == NULL);
    SAY(fdopen(open(in("g"), O_RDONLY), "w") == NULL);
    SAY(fdopen(-1, "r") == NULL);
}

/* Prints how many entries the listing still has, and how many of them have the name "new". */
static void count(const char *what, DIR *d) {
    int n = 0, new = 0;
    struct dirent *e;
    while ((e = readdir(d))) {
        n++;
        new += strcmp(e->d_name, "new") == 0;
    }
    printf("%s: %d names, %d new\n", what, n, new);
}

/* Changes a directory while it is open. After rewinddir, its listing must show the change. */
static void listings(void) {
    DIR *d = opendir(in("d"));
    long start = telldir(d);
    count("at first", d);
    SAY(close(open(in("d/new"), O_CREAT | O_WRONLY, 0600)));
    count("at the end", d);
    rewinddir(d);
    count("rewound", d);
    SAY(unlink(in("d/new")));
    rewinddir(d);
    count("without it", d);
    SAY(mkdir(in("d/new"), 0700));
    rewinddir(d);
    count("a directory", d);
    SAY(rmdir(in("d/new")));
    seekdir(d, start);
    SAY(readdir(d) != NULL);
    SAY(closedir(d));
    SAY(opendir(in("f")) == NULL);
    SAY(opendir(in("nope")) == NULL);
    SAY(opendir("") == NULL);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    base = argv[1];
    buf = malloc(ROOM);
    fd = open(in("f"), O_RDONLY);
    tell("opened", fd, "f");
    reads();
    changes();
    controls();
    maps();
    advice();
    moves();
    duplicates();
    opens();
    again();
    locks();
    streams();
    listings();
    /* The following calls come last, because the library must assume that some of them have changed
     * the file `f`. After these calls, it reads `f` from the source. */
    nowhere("nope/x");
    nowhere("f/x");
    nothing();
    return 0;
}
