/* Preloaded before Monarch's library, to simulate a broken library. The variable FAULT names the
 * active fault. The fault affects only relative paths and files below FAULT_BELOW, so that the
 * Python interpreter itself keeps working. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define TWIN(alias, name) __asm__(".globl " #alias "\n.set " #alias ", " #name);

static int is(const char *fault) {
    const char *wanted = getenv("FAULT");
    return wanted && strcmp(wanted, fault) == 0;
}

static int below(const char *path) {
    const char *root = getenv("FAULT_BELOW");
    return root && strncmp(path, root, strlen(root)) == 0;
}

/* Whether the fault affects a path. Every relative path is affected, because the working directory
 * of the tested program lies below FAULT_BELOW. */
static int ours(const char *path) { return path && (path[0] != '/' || below(path)); }

static int is_ours(int fd) {
    char link[64], path[PATH_MAX];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (n < 0)
        return 0;
    path[n] = 0;
    return below(path);
}

/* --- opening ------------------------------------------------------------------------------- */

static int spoilt(int flags) {
    if (is("O_APPEND is dropped"))
        flags &= ~O_APPEND;
    if (is("O_CLOEXEC is dropped"))
        flags &= ~O_CLOEXEC;
    if (is("O_EXCL is dropped"))
        flags &= ~O_EXCL;
    if (is("O_TRUNC is dropped"))
        flags &= ~O_TRUNC;
    return flags;
}

/* Returns `fd`, the result of an open. If the fault is active and the file is missing, opens
 * /dev/null instead. */
static int found(int fd) {
    if (fd < 0 && errno == ENOENT && is("open finds a missing file"))
        return NEXT(open)("/dev/null", O_RDWR | O_CLOEXEC);
    return fd;
}

static int opened(int fd) {
    fd = found(fd);
    if (fd < 0 && errno == ENOENT && is("errno is another"))
        errno = EIO;
    return fd;
}

PUBLIC int openat(int dir, const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    int mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(args, int) : 0;
    va_end(args);
    if (!ours(path))
        return NEXT(openat)(dir, path, flags, mode);
    return opened(NEXT(openat)(dir, path, spoilt(flags), mode));
}
TWIN(openat64, openat)

PUBLIC int open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    int mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(args, int) : 0;
    va_end(args);
    if (!ours(path))
        return NEXT(open)(path, flags, mode);
    return opened(NEXT(open)(path, spoilt(flags), mode));
}
TWIN(open64, open)

/* --- offsets ------------------------------------------------------------------------------- */

/* Returns `fresh`, a duplicate of `fd`. If the fault is active, `fresh` first gets a new open file
 * description, and thus an offset of its own. */
static int apart(int fd, int fresh) {
    char link[64];
    if (fresh < 0 || !is("duplicates have their own offsets") || !is_ours(fd))
        return fresh;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int other = NEXT(open)(link, NEXT(fcntl)(fd, F_GETFL) & ~O_CREAT & ~O_TRUNC & ~O_EXCL);
    if (other >= 0) {
        NEXT(lseek)(other, NEXT(lseek)(fd, 0, SEEK_CUR), SEEK_SET);
        NEXT(dup3)(other, fresh, NEXT(fcntl)(fresh, F_GETFD) & FD_CLOEXEC ? O_CLOEXEC : 0);
        NEXT(close)(other);
    }
    return fresh;
}

PUBLIC int dup(int fd) { return apart(fd, NEXT(dup)(fd)); }
PUBLIC int dup2(int fd, int fresh) { return apart(fd, NEXT(dup2)(fd, fresh)); }
PUBLIC int dup3(int fd, int fresh, int flags) { return apart(fd, NEXT(dup3)(fd, fresh, flags)); }

PUBLIC int fcntl(int fd, int command, ...) {
    va_list args;
    va_start(args, command);
    void *argument = va_arg(args, void *);
    va_end(args);
    int r = NEXT(fcntl)(fd, command, argument);
    return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? apart(fd, r) : r;
}
TWIN(fcntl64, fcntl)

/* --- reading ------------------------------------------------------------------------------- */

static size_t capped(int fd, size_t n) {
    return n > 65536 && is("reads end at 64 KiB") && is_ours(fd) ? 65536 : n;
}

static ssize_t at_end(int fd, size_t n, ssize_t got) {
    if (got == 0 && n > 0 && is("pread at the end fails") && is_ours(fd)) {
        errno = EIO;
        return -1;
    }
    return got;
}

PUBLIC ssize_t read(int fd, void *buf, size_t n) { return NEXT(read)(fd, buf, capped(fd, n)); }

PUBLIC ssize_t pread(int fd, void *buf, size_t n, off_t at) {
    return at_end(fd, n, NEXT(pread)(fd, buf, n, at));
}
TWIN(pread64, pread)

PUBLIC ssize_t readv(int fd, const struct iovec *parts, int count) {
    int fewer = count > 1 && is("readv fills one part") && is_ours(fd);
    return NEXT(readv)(fd, parts, fewer ? 1 : count);
}

PUBLIC void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset) {
    int wrong = fd >= 0 && offset > 0 && is("mappings begin a page early") && is_ours(fd);
    return NEXT(mmap)(at, n, prot, flags, fd, wrong ? offset - 4096 : offset);
}
TWIN(mmap64, mmap)

/* --- attributes and names ------------------------------------------------------------------ */

PUBLIC int fstat(int fd, struct stat *st) {
    int r = NEXT(fstat)(fd, st);
    if (r == 0 && is("fstat has another inode") && is_ours(fd))
        st->st_ino += 1000000007;
    return r;
}
TWIN(fstat64, fstat)

static int missing(int r, const char *path, struct stat *st) {
    if (r == 0 || errno != ENOENT || !is("stat finds a missing file") || !ours(path))
        return r;
    memset(st, 0, sizeof *st);
    st->st_mode = S_IFREG | 0644;
    return 0;
}

PUBLIC int stat(const char *path, struct stat *st) {
    return missing(NEXT(stat)(path, st), path, st);
}
TWIN(stat64, stat)

PUBLIC int fstatat(int dir, const char *path, struct stat *st, int flags) {
    return missing(NEXT(fstatat)(dir, path, st, flags), path, st);
}
TWIN(fstatat64, fstatat)

static int accessible(int r, const char *path) {
    return r != 0 && errno == ENOENT && is("access finds a missing file") && ours(path) ? 0 : r;
}

PUBLIC int access(const char *path, int mode) { return accessible(NEXT(access)(path, mode), path); }

PUBLIC int faccessat(int dir, const char *path, int mode, int flags) {
    return accessible(NEXT(faccessat)(dir, path, mode, flags), path);
}

PUBLIC struct dirent *readdir(DIR *listed) {
    struct dirent *entry = NEXT(readdir)(listed);
    if (entry && strcmp(entry->d_name, "f1") == 0 && is("a listing loses a name") &&
        is_ours(dirfd(listed)))
        entry = NEXT(readdir)(listed);
    return entry;
}
TWIN(readdir64, readdir)

PUBLIC int close(int fd) {
    int fails = is("close fails") && is_ours(fd), r = NEXT(close)(fd);
    if (!fails)
        return r;
    errno = EIO;
    return -1;
}
