/* Operations on locks, leases and backing descriptors. For a lock through a descriptor of a copy,
 * the library opens a backing descriptor: a second descriptor, of the source file. The program may
 * close or replace the backing descriptor by its number. The locks and leases must nevertheless end
 * at the same moment as without the library.
 *
 *     behind CASE FILE OTHER
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *path, *other;

static long say_as(const char *what, long result) {
    printf("%s = %ld %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
    return result;
}
#define SAY(call) say_as(#call, (long)(call))

static int lock_part(int fd, int command, short type, long at, long n) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = n};
    return fcntl(fd, command, &lock);
}

/* Prints which locks on the file another process finds. The other process opens the file by a
 * direct system call, which the library does not see. */
static void tell_others(const char *when) {
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR);
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        fcntl(fd, F_OFD_GETLK, &lock);
        printf("%s: %s at %ld for %ld, flock %s\n", when,
               lock.l_type == F_UNLCK ? "free" : "locked", (long)lock.l_start, (long)lock.l_len,
               flock(fd, LOCK_EX | LOCK_NB) ? "refused" : "granted");
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

/* Returns the backing descriptor, which is the highest open descriptor with a number of at least
 * 100. Without the library there is none; the result is then 600, an unused number. */
static int highest(void) {
    for (int fd = 1023; fd > 99; fd--)
        if (syscall(SYS_fcntl, fd, F_GETFD) >= 0)
            return fd;
    return 600;
}

static void posix(void) {
    int fd = open(path, O_RDONLY), again = open(path, O_RDONLY);
    SAY(lock_part(fd, F_SETLK, F_RDLCK, 0, 10));
    tell_others("locked");
    int copy = dup(fd);
    tell_others("duplicated");
    SAY(flock(again, LOCK_SH));
    tell_others("another is locked as well");
    SAY(dup2(again, 700));
    tell_others("that is duplicated");
    int second = open(other, O_RDONLY);
    SAY(flock(second, LOCK_EX));
    SAY(dup2(second, again));
    tell_others("a descriptor of the file is another's");
    SAY(lock_part(fd, F_SETLK, F_RDLCK, 5, 0));
    SAY(close(copy));
    tell_others("the duplicate is closed");
}

static void close_from(int number) { closefrom(number); }

static void numbers(void) {
    static const char *const kinds[] = {"flock", "open file", "POSIX"};
    static const char *const ways[] = {"dup2", "dup3", "close_range", "closefrom",
                                       "dup2 of itself"};
    for (int kind = 0; kind < 3; kind++)
        for (int way = 0; way < 5; way++) {
            int fd = open(path, O_RDONLY), null = open("/dev/null", O_RDONLY);
            printf("--- %s, %s\n", kinds[kind], ways[way]);
            SAY(kind == 0 ? flock(fd, LOCK_SH)
                          : lock_part(fd, kind == 1 ? F_OFD_SETLK : F_SETLK, F_RDLCK, 3, 30));
            if (kind == 2)
                SAY(lock_part(fd, F_SETLK, F_RDLCK, 100, 0));
            int behind = highest();
            if (way == 0)
                SAY(dup2(null, behind) == behind);
            if (way == 1)
                SAY(dup3(null, behind, O_CLOEXEC) == behind);
            if (way == 2)
                SAY(close_range(100, ~0U, 0));
            if (way == 3)
                close_from(100);
            if (way == 4)
                SAY(dup2(fd, behind) == behind);
            tell_others("replaced");
            if (way < 2 && kind < 2)
                SAY(close(behind));
            tell_others("closed");
            SAY(dup2(-1, fd));
            SAY(dup3(null, fd, 12345));
            SAY(dup2(null, -1));
            SAY(close_range(3, 1000, 4096));
            SAY(close_range(1000, 3, 0));
            tell_others("what fails closes nothing");
            SAY(close_range(100, 1000, 4 /* CLOSE_RANGE_CLOEXEC */));
            SAY(fcloseall());
            tell_others("still");
            close(null);
            if (way == 4)
                close(behind);
            close(fd);
            tell_others("the end");
        }
}

/* When the limit on descriptors is lowered, descriptors with higher numbers stay open. But no call
 * can make one of these numbers refer to another file any more. */
static void limits(void) {
    struct rlimit low = {400, 1024}, high = {1024, 1024};
    int fd = open(path, O_RDONLY);
    SAY(setrlimit(RLIMIT_NOFILE, &high));
    SAY(dup2(fd, 450));
    SAY(flock(450, LOCK_SH));
    SAY(setrlimit(RLIMIT_NOFILE, &low));
    SAY(dup2(0, 450));
    tell_others("refused");
    SAY(flock(fd, LOCK_UN));
    tell_others("unlocked");
}

/* --- leases: the child reports by its exit status, so that the order of lines is fixed -------- */

static pid_t writer(int flags) {
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        /* Without this call, the child's inherited descriptors would keep the lease. */
        syscall(SYS_close_range, 3, ~0U, 0);
        int fd = open(path, O_RDWR | flags);
        _exit(fd < 0 ? errno : pwrite(fd, "NEW", 3, 0) != 3);
    }
    return child;
}

static void reap(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    printf("the writer: %d\n", WEXITSTATUS(status));
}

static void wait_told(int fd) {
    sigset_t set;
    siginfo_t info;
    struct timespec limit = {10, 0};
    sigfillset(&set);
    sigdelset(&set, SIGCHLD);
    int signal = sigtimedwait(&set, &info, &limit);
    printf("signal %d", signal);
    if (signal >= SIGRTMIN)
        printf(" of this descriptor %d, band %ld", info.si_fd == fd, (long)info.si_band);
    printf("\n");
    SAY(fcntl(fd, F_GETLEASE));
}

static void lease(int its_signal, int ends_by_close, int duplicates) {
    char text[4] = "";
    int fd = open(path, O_RDONLY);
    int copy = duplicates ? dup(fd) : -1;
    SAY(lseek(fd, 7, SEEK_SET));
    SAY(fcntl(fd, F_GETLEASE));
    if (its_signal)
        SAY(fcntl(fd, F_SETSIG, its_signal));
    SAY(fcntl(fd, F_GETSIG));
    SAY(fcntl(fd, F_SETLEASE, F_RDLCK));
    SAY(fcntl(fd, F_GETOWN) == getpid());
    SAY(fcntl(fd, F_GETLEASE));
    if (duplicates)
        SAY(fcntl(copy, F_GETLEASE));
    SAY(read(fd, text, 3));
    printf("%s, %ld\n", text, (long)lseek(duplicates ? copy : fd, 0, SEEK_CUR));
    reap(writer(O_NONBLOCK));
    wait_told(fd);
    pid_t child = writer(0);
    if (duplicates)
        SAY(close(copy));
    SAY(ends_by_close ? close(fd) : fcntl(fd, F_SETLEASE, F_UNLCK));
    reap(child);
    if (!ends_by_close) {
        SAY(fcntl(fd, F_GETLEASE));
        SAY(pread(fd, text, 3, 0));
        printf("%s\n", text);
        SAY(fcntl(fd, F_SETLEASE, 77));
        close(fd);
    }
    SAY(fcntl(fd, F_SETLEASE, F_RDLCK));
}

static void leases(void) { lease(0, 0, 0); }
static void leases_signal(void) { lease(SIGRTMIN + 3, 0, 0); }
static void leases_closed(void) { lease(SIGRTMIN + 4, 1, 0); }
static void leases_shared(void) { lease(SIGRTMIN + 5, 0, 1); }
static void leases_own(void) {
    struct f_owner_ex owner = {F_OWNER_PID, getpid()};
    int fd = open(path, O_RDONLY);
    SAY(fcntl(fd, F_SETOWN_EX, &owner));
    SAY(fcntl(fd, F_SETLEASE, F_RDLCK));
    reap(writer(O_NONBLOCK));
    wait_told(fd);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"posix", posix},
    {"numbers", numbers},
    {"limits", limits},
    {"leases", leases},
    {"leases_signal", leases_signal},
    {"leases_closed", leases_closed},
    {"leases_shared", leases_shared},
    {"leases_own", leases_own},
};

int main(int argc, char **argv) {
    sigset_t all;
    if (argc != 4)
        return 2;
    path = argv[2];
    other = argv[3];
    alarm(60);
    sigfillset(&all);
    sigdelset(&all, SIGALRM);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(argv[1], cases[i].name) == 0)
            cases[i].run();
    return 0;
}
