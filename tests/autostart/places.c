/* Opens a file in the situation named by the first argument. In most situations the library must
 * not start a daemon. Prints the duration of the open [us], the processor time of the open [us],
 * errno after the open, and the errno of a wait for any child. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *file;
static long wall, cpu;
static int error;

static long now_us(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int open_it(void) {
    long began = now_us(CLOCK_MONOTONIC), used = now_us(CLOCK_THREAD_CPUTIME_ID);
    errno = 77;
    int fd = open(file, O_RDONLY);
    error = errno;
    cpu = now_us(CLOCK_THREAD_CPUTIME_ID) - used;
    wall = now_us(CLOCK_MONOTONIC) - began;
    return fd;
}

static void handle(int number) {
    (void)number;
    _exit(open_it() < 0);
}

static sigjmp_buf before;

static void jump(int number) {
    (void)number;
    siglongjmp(before, 1);
}

/* Opens the file many times, and a signal handler jumps out of each open. In each attempt, the
 * signal comes 10 us later than in the attempt before. */
static void jump_out(void) {
    static volatile int us;
    signal(SIGALRM, jump);
    for (us = 10; us < 400; us += 10) {
        if (sigsetjmp(before, 1) == 0) {
            struct itimerval later = {{0, 0}, {0, us}}, never = {{0, 0}, {0, 0}};
            setitimer(ITIMER_REAL, &later, NULL);
            close(open_it());
            setitimer(ITIMER_REAL, &never, NULL);
        }
    }
}

/* Delays every exec of `program` until this process ends, but for 5 s at most. The kernel asks a
 * fanotify group for permission to exec, gets no answer, and waits until the group is closed. An
 * orphan process keeps the group open during this time. This process closes its own descriptor of
 * the group at once. Otherwise a child might inherit the descriptor and then wait for permission.
 * The child would then keep the group open itself, and could not be killed. */
static int hold_exec_of(const char *program) {
    int group = fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY), ours[2];
    if (group < 0 || pipe(ours) != 0 ||
        fanotify_mark(group, FAN_MARK_ADD, FAN_OPEN_EXEC_PERM, AT_FDCWD, program) != 0)
        return 0;
    pid_t child = fork();
    if (child == 0 && fork() == 0) {
        struct pollfd end = {ours[0], POLLIN, 0};
        close(ours[1]);
        poll(&end, 1, 5000);
    }
    if (child == 0)
        _exit(0);
    close(group);
    return child > 0 && waitpid(child, NULL, 0) == child;
}

/* Returns 1 if two conditions hold, otherwise 0: this process has no descriptor of a file named
 * `starts` of a session; and this process can still fork. */
static int forks_clean(void) {
    char path[64], name[4096];
    for (int fd = 3; fd < 64; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        long size = readlink(path, name, sizeof name - 1);
        name[size < 0 ? 0 : size] = 0;
        if (strstr(name, "/starts"))
            return 0;
    }
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    return child > 0 && waitpid(child, NULL, 0) == child;
}

int main(int n, char **words) {
    const char *place = n > 2 ? words[1] : "";
    file = words[n - 1];
    if (strcmp(place, "handler") == 0) {
        signal(SIGUSR1, handle);
        raise(SIGUSR1);
    } else if (strcmp(place, "vfork") == 0) {
        pid_t child = vfork();
        if (child == 0)
            _exit(open_it() < 0);
        int status;
        return waitpid(child, &status, 0) != child || status;
    } else if (strcmp(place, "subreaper") == 0) {
        prctl(PR_SET_CHILD_SUBREAPER, 1);
    } else if (strcmp(place, "mounts") == 0) {
        if (unshare(CLONE_NEWNS) != 0)
            return 3;
    } else if (place[0] == '/') {
        if (chroot(place) != 0)
            return 3;
    } else if (strcmp(place, "group") == 0) {
        if (setegid(65534) != 0)
            return 3;
    } else if (strcmp(place, "pids") == 0) {
        if (unshare(CLONE_NEWPID) != 0)
            return 3;
    } else if (strcmp(place, "net") == 0) {
        if (unshare(CLONE_NEWNET) != 0)
            return 3;
    } else if (strcmp(place, "privileges") == 0) {
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
            return 3;
    } else if (strcmp(place, "jump") == 0) {
        jump_out();
    } else if (strcmp(place, "hang") == 0) {
        if (!hold_exec_of(words[2]))
            return 4;
    } else if (strcmp(place, "large") == 0) {
        memset(malloc(512 << 20), 1, 512 << 20);
    }
    if (open_it() < 0)
        return 2;
    int seen = waitpid(-1, NULL, 0);
    printf("%ld %ld %d %d\n", wall, cpu, error, seen < 0 ? errno : 0);
    return forks_clean() ? 0 : 5;
}
