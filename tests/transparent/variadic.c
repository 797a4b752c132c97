/* Calls functions with optional arguments, such as the mode of open(). If a caller does not pass an
 * argument, the argument's register may contain any value, which must have no effect. The same is
 * true for the upper half of the register of a 32-bit argument. So this program makes each call
 * several times, each time with another value left in the register.
 *
 *   variadic DIRECTORY     DIRECTORY has the files f and g; prints the result of each call
 *
 * To leave a value in the register, the program passes the value as an extra argument. The callee
 * cannot tell such a call from a call without this argument.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef unsigned long remains;

#define UPPER(left) ((left) & ~0xFFFFFFFFUL)
#define WITH(left, value) (UPPER(left) | (unsigned)(value))
#define EACH(list) (sizeof(list) / sizeof *(list))

/* The values that are left in registers. The last five look like a mode, a descriptor, a pointer,
 * and flags of fcntl. */
static const remains lefts[] = {
    0, ~0UL, 0xA5A5A5A5A5A5A5A5UL, 07777, 3, 0x7FFE00000000UL, FD_CLOEXEC, O_NONBLOCK};

static void said(const char *call, long word, long r) {
    printf("%s %#lx: %ld %s\n", call, (unsigned long)word, r, r < 0 ? strerror(errno) : "");
}

static void opened(const char *call, int flags, int fd) {
    struct stat st;
    said(call, flags, fd);
    if (fd < 0)
        return;
    fstat(fd, &st);
    printf("  mode %o size %ld flags %#x %#x\n", st.st_mode, (long)st.st_size, fcntl(fd, F_GETFD),
           fcntl(fd, F_GETFL));
    close(fd);
}

/* Opens the path with each function of the open family. */
static void open_by_all(const char *path, int flags, remains left) {
    opened("open", flags, open(path, flags, left));
    opened("open64", flags, open64(path, flags, left));
    opened("openat", flags, openat(AT_FDCWD, path, flags, left));
    opened("openat64", flags, openat64(AT_FDCWD, path, flags, left));
}

static void open_without_mode(remains left) {
    static const int to_read[] = {0,           O_CLOEXEC, O_NOFOLLOW,  O_NONBLOCK,
                                  O_DIRECTORY, O_PATH,    O_LARGEFILE, O_DIRECTORY | O_CLOEXEC};
    static const int to_write[] = {O_WRONLY, O_RDWR | O_APPEND, O_RDWR | O_DIRECTORY};
    for (size_t i = 0; i < EACH(to_read); i++) {
        open_by_all("f", to_read[i], left);
        open_by_all(".", to_read[i], left);
    }
    for (size_t i = 0; i < EACH(to_write); i++)
        open_by_all("g", to_write[i], left);
}

static void open_with_mode(remains left) {
    static const mode_t modes[] = {0640, 0, 0604 | S_ISUID};
    for (size_t i = 0; i < EACH(modes); i++) {
        remains mode = WITH(left, modes[i]);
        open_by_all("g", O_RDWR | O_CREAT, mode);
        open_by_all(".", O_RDWR | O_TMPFILE, mode);
        opened("made", 0, open("made", O_WRONLY | O_CREAT | O_EXCL, mode));
        opened("made", 0, openat(AT_FDCWD, "made2", O_CREAT | O_EXCL, mode));
        unlink("made");
        unlink("made2");
    }
}

static void control(int fd, remains left) {
    static const int asks[] = {F_GETFD, F_GETFL, F_GETOWN, F_GETSIG, F_GETLEASE, F_GETPIPE_SZ};
    static const int flags[] = {FD_CLOEXEC, 0};
    for (size_t i = 0; i < EACH(flags); i++) {
        said("F_SETFD", flags[i], fcntl(fd, F_SETFD, WITH(left, flags[i])));
        for (size_t k = 0; k < EACH(asks); k++)
            said("fcntl", asks[k], fcntl(fd, asks[k], left));
    }
    int first = fcntl(fd, F_DUPFD, WITH(left, 300));
    int second = fcntl(fd, F_DUPFD_CLOEXEC, WITH(left, 300));
    said("F_DUPFD", fcntl(first, F_GETFD), first);
    said("F_DUPFD_CLOEXEC", fcntl(second, F_GETFD), second);
    close(first);
    close(second);
    said("F_DUPFD", -1, fcntl(fd, F_DUPFD, WITH(left, -1)));
    said("F_SETFL", 0, fcntl(fd, F_SETFL, WITH(left, O_NONBLOCK)));
    said("F_GETFL", 0, fcntl(fd, F_GETFL, left));
}

static void request(int fd, remains left) {
    int flags = -1, version = -1, block = -1;
    said("FIOCLEX", 0, ioctl(fd, FIOCLEX, left));
    said("F_GETFD", 0, fcntl(fd, F_GETFD));
    said("FIONCLEX", 0, ioctl(fd, WITH(left, FIONCLEX), left));
    said("F_GETFD", 0, fcntl(fd, F_GETFD));
    said("no such request", 0, ioctl(fd, WITH(left, 0x1234), left));
    long r = ioctl(fd, WITH(left, FS_IOC_GETFLAGS), (remains)&flags);
    said("FS_IOC_GETFLAGS", flags, r);
    r = ioctl(fd, WITH(left, FS_IOC_GETVERSION), (remains)&version);
    said("FS_IOC_GETVERSION", version, r);
    r = ioctl(fd, WITH(left, FIGETBSZ), (remains)&block);
    said("FIGETBSZ", block, r);
    int to = open("clone", O_RDWR | O_CREAT, 0600);
    said("FICLONE", 0, ioctl(to, WITH(left, FICLONE), WITH(left, fd)));
    close(to);
    unlink("clone");
}

static void map(int fd, remains left) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *at = mmap(NULL, 4 * page, PROT_READ, MAP_PRIVATE, fd, 0), first = *at;
    char *less = mremap(at, 4 * page, page, 0, left);
    said("mremap to less", 0, less == at ? 0 : -1);
    char *more = mremap(less, page, 3 * page, MREMAP_MAYMOVE, left);
    said("mremap to more", 0, more == MAP_FAILED ? -1 : more[0] == first);
    munmap(more, 3 * page);
}

int main(int argc, char **argv) {
    if (argc != 2 || chdir(argv[1]) != 0)
        return 1;
    umask(0);
    for (size_t i = 0; i < EACH(lefts); i++) {
        int fd = open("f", O_RDONLY);
        printf("%#lx\n", lefts[i]);
        open_without_mode(lefts[i]);
        control(fd, lefts[i]);
        request(fd, lefts[i]);
        /* control() is called again, because request() may have made the library open a backing
         * descriptor */
        control(fd, lefts[i]);
        map(fd, lefts[i]);
        close(fd);
    }
    for (size_t i = 0; i < EACH(lefts); i++)
        open_with_mode(lefts[i]);
    return 0;
}
