/* Operations on a descriptor that was opened for reading. Under the library, it is a descriptor of
 * the file's copy. Each operation must take effect on the file in the source, not on the copy. */
#include <sys/time.h>
#include <sys/xattr.h>

#include "change.h"

static const struct timespec some_times[2] = {{1500000000, 111}, {1500000001, 222}};
static const struct timeval some_timevals[2] = {{1500000000, 111}, {1500000001, 222}};

static const char *volatile no_path; /* a null pointer that the compiler does not recognize */

/* Prints the attributes and the first bytes that fstat and pread return for the descriptor after
 * the operation. The attributes must be those of the file in the source, never those of the
 * copy. */
static void look_at(int fd) {
    struct stat by_fd, by_path;
    char text[8] = "";
    SAY(fstat(fd, &by_fd));
    SAY(pread(fd, text, 5, 0));
    printf("fstat: %o %u %u %ld %ld\n", by_fd.st_mode, by_fd.st_uid, by_fd.st_gid,
           (long)by_fd.st_nlink, (long)by_fd.st_size);
    if (stat(in("f"), &by_path) == 0)
        printf("the same: %d %d\n", by_fd.st_ino == by_path.st_ino, by_fd.st_dev == by_path.st_dev);
}

static const char *name_of(int fd, const char *form) {
    char *path = malloc(64);
    snprintf(path, 64, form, fd);
    return path;
}

#define BY_FD(name, call)         \
    static void op_##name(void) { \
        int fd = reading("f");    \
        SAY(call);                \
        look_at(fd);              \
    }

BY_FD(fchmod, fchmod(fd, 0600))
BY_FD(fchown, fchown(fd, 12345, 54321))
BY_FD(fchownat_empty, fchownat(fd, "", 12345, -1, AT_EMPTY_PATH))
BY_FD(futimens, futimens(fd, some_times))
BY_FD(futimes, futimes(fd, some_timevals))
BY_FD(futimesat_null, futimesat(fd, no_path, some_timevals))
BY_FD(utimensat_empty, utimensat(fd, "", some_times, AT_EMPTY_PATH))
BY_FD(utimensat_null, utimensat(fd, no_path, some_times, 0))
BY_FD(fsetxattr, fsetxattr(fd, "user.b", "new", 3, 0))
BY_FD(fremovexattr, fremovexattr(fd, "user.a"))
BY_FD(linkat_empty, linkat(fd, "", AT_FDCWD, in("h"), AT_EMPTY_PATH))
BY_FD(write_fails, write(fd, "x", 1))
BY_FD(ftruncate_fails, ftruncate(fd, 1))

/* With AT_EMPTY_PATH, an empty path means the file of the descriptor. A path that is not empty has
 * its usual meaning. */
BY_FD(empty_path_flag_with_a_path, fchownat(fd, in("g"), 12345, -1, AT_EMPTY_PATH))
BY_FD(empty_path_flag_with_another, utimensat(fd, in("g"), some_times, AT_EMPTY_PATH))

/* --- the descriptor's name in /proc --- */

#define BY_PROC(name, form, call)             \
    static void op_##name(void) {             \
        int fd = reading("f");                \
        const char *path = name_of(fd, form); \
        SAY(call);                            \
        look_at(fd);                          \
    }

BY_PROC(proc_chmod, "/proc/self/fd/%d", chmod(path, 0600))
BY_PROC(proc_chown, "/proc/self/fd/%d", chown(path, 12345, -1))
BY_PROC(proc_utimensat, "/proc/self/fd/%d", utimensat(AT_FDCWD, path, some_times, 0))
BY_PROC(proc_setxattr, "/dev/fd/%d", setxattr(path, "user.b", "new", 3, 0))
BY_PROC(proc_linkat, "/proc/self/fd/%d",
        linkat(AT_FDCWD, path, AT_FDCWD, in("h"), AT_SYMLINK_FOLLOW))
BY_PROC(odd_proc_chmod, "/proc/../proc//self/fd/%d", chmod(path, 0600))

#define OPEN_PROC(name, form, call)           \
    static void op_##name(void) {             \
        int fd = reading("f");                \
        const char *path = name_of(fd, form); \
        int again = (int)SAY(call);           \
        SAY(write(again, "again", 5));        \
        SAY(close(again));                    \
        SAY(close(fd));                       \
    }

OPEN_PROC(proc_open, "/proc/self/fd/%d", open(path, O_RDWR))
OPEN_PROC(proc_open_trunc, "/proc/self/fd/%d", open(path, O_WRONLY | O_TRUNC))
OPEN_PROC(proc_thread_open, "/proc/thread-self/fd/%d", open(path, O_WRONLY))
OPEN_PROC(dev_fd_open, "/dev/fd/%d", open(path, O_WRONLY | O_APPEND))
OPEN_PROC(odd_proc_open, "/proc/./self/fd/%d", open(path, O_RDWR))
OPEN_PROC(odd_proc_open_trunc, "//proc/self/fd/%d", open(path, O_RDWR | O_TRUNC))

static void op_proc_at(void) {
    int fd = reading("f"), dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY);
    int again = (int)SAY(openat(dir, name_of(fd, "%d"), O_RDWR | O_TRUNC));
    SAY(write(again, "again", 5));
    SAY(fchmodat(dir, name_of(fd, "%d"), 0600, 0));
}

static void op_proc_fopen(void) {
    int fd = reading("f");
    FILE *f = fopen(name_of(fd, "/proc/self/fd/%d"), "w");
    SAY(fputs("again", f));
    SAY(fclose(f));
}

static void op_proc_fopen_r_plus(void) {
    int fd = reading("f");
    FILE *f = fopen(name_of(fd, "/proc/self/fd/%d"), "r+");
    SAY(fputs("again", f));
    SAY(fclose(f));
}

/* Does not read from the descriptor afterwards, because a read still returns the old bytes of the
 * copy, as close-to-open consistency allows. */
static void op_proc_truncate(void) { SAY(truncate(name_of(reading("f"), "/proc/self/fd/%d"), 10)); }

/* --- a descriptor of a file that was renamed or replaced: no other file may be changed --- */

static void op_fchmod_moved(void) {
    int fd = reading("g");
    SAY(rename(in("g"), in("h")));
    SAY(rename(in("f"), in("g")));
    fchmod(fd, 0600);
}

static void op_futimens_replaced(void) {
    int fd = reading("f");
    SAY(rename(in("g"), in("f")));
    futimens(fd, some_times);
}

/* --- reading extended attributes of a descriptor --- */

static void op_fgetxattr(void) {
    char value[64] = "", names[256] = "";
    int fd = reading("f");
    SAY(fgetxattr(fd, "user.a", value, sizeof value));
    SAY(fgetxattr(fd, "user.none", value, sizeof value));
    printf("%s\n", value);
    SAY(flistxattr(fd, names, sizeof names));
    printf("%s\n", names);
}

#define ROW(name) \
    { #name, op_##name }
const struct operation by_descriptor[] = {
    ROW(fchmod),
    ROW(fchown),
    ROW(fchownat_empty),
    ROW(futimens),
    ROW(futimes),
    ROW(futimesat_null),
    ROW(utimensat_empty),
    ROW(utimensat_null),
    ROW(fsetxattr),
    ROW(fremovexattr),
    ROW(linkat_empty),
    ROW(write_fails),
    ROW(ftruncate_fails),
    ROW(empty_path_flag_with_a_path),
    ROW(empty_path_flag_with_another),
    ROW(proc_chmod),
    ROW(proc_chown),
    ROW(proc_truncate),
    ROW(proc_utimensat),
    ROW(proc_setxattr),
    ROW(proc_linkat),
    ROW(odd_proc_chmod),
    ROW(proc_open),
    ROW(proc_open_trunc),
    ROW(proc_thread_open),
    ROW(dev_fd_open),
    ROW(odd_proc_open),
    ROW(odd_proc_open_trunc),
    ROW(proc_at),
    ROW(proc_fopen),
    ROW(proc_fopen_r_plus),
    ROW(fchmod_moved),
    ROW(futimens_replaced),
    ROW(fgetxattr),
    {NULL, NULL},
};
