/* Injects faults into the processes that take part in the start of a daemon. A tracer cannot follow
 * these processes, because they are cloned with CLONE_UNTRACED. But they inherit a seccomp filter,
 * which asks a supervisor before each of the listed system calls.
 *
 *   starter_faults LOG WHO:CALL:NUMBER:FAULT... -- COMMAND...
 *
 * The faults are injected in the given order, each fault once. WHO is
 *
 *   program  COMMAND; only the calls that the library makes for a start
 *   beside   a process that shares the program's memory because it has not called exec yet
 *   starter  the starter, after its exec
 *   daemon   the daemon
 *   any      any process
 *
 * CALL is a name from the table below. The fault is injected when a process makes its NUMBERth
 * CALL, counted from 1. A fault whose NUMBER is 0 is not part of the order: it is injected whenever
 * a process makes the CALL. FAULT is "kill" (SIGKILL), "stop" (SIGSTOP) or an errno. For each
 * injected fault, a line is written to LOG: the index of the fault, counted from 0, and the
 * process. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#define MOST_FAULTS 24
/* The supervisor closes its descriptors below this number. Every descriptor that the test has open
 * when it starts this program is below this number. */
#define MOST_DESCRIPTORS 256
/* When a process gets a fault, the count of its calls is set to this value. The value is so far
 * below 0 that the count never reaches the NUMBER of another fault, unless an open by the program
 * itself resets the count. */
#define NOT_AGAIN (-1000000)
/* The supervisor ends after this time [s]. No test takes longer. */
#define LIMIT_S 300

#define CALL(name) \
    { #name, SYS_##name }
static const struct {
    const char *name;
    int number;
} calls[] = {
    CALL(clone),    CALL(close_range),  CALL(openat), CALL(mkdirat),   CALL(flock),  CALL(fcntl),
    CALL(pwrite64), CALL(rt_sigaction), CALL(execve), CALL(fallocate), CALL(listen),
};

static struct fault {
    char who[16], call[16];
    int number, after, error; /* if error is 0, the fault is `signal` */
    int signal;
} faults[MOST_FAULTS];
static int fault_count, current;
static pid_t program;
static int log_fd;
/* The process whose calls are counted, and the number of calls that it has made. */
static pid_t counted;
static int made;

static void die(const char *what) {
    perror(what);
    _exit(125);
}

static int number_of(const char *name) {
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (strcmp(name, calls[i].name) == 0)
            return calls[i].number;
    errno = EINVAL;
    die(name);
    return -1;
}

static void read_fault(const char *text) {
    char how[16];
    struct fault *f = &faults[fault_count];
    if (fault_count++ == MOST_FAULTS ||
        sscanf(text, "%15[^:]:%15[^:]:%d:%15s", f->who, f->call, &f->after, how) != 4) {
        errno = EINVAL;
        die(text);
    }
    f->number = number_of(f->call);
    f->error = atoi(how);
    f->signal = strcmp(how, "kill") == 0 ? SIGKILL : SIGSTOP;
}

/* --- in the supervisor ------------------------------------------------------------------------ */

static size_t read_file(pid_t pid, const char *name, char *to, size_t n) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, to, n - 1);
    if (fd >= 0)
        close(fd);
    to[got < 0 ? 0 : got] = 0;
    return got < 0 ? 0 : (size_t)got;
}

static pid_t process_of(pid_t thread) {
    char text[512];
    read_file(thread, "status", text, sizeof text);
    const char *line = strstr(text, "\nTgid:");
    return line ? atoi(line + 6) : 0;
}

static const char *role_of(pid_t process) {
    char words[4096];
    if (process == program)
        return "program";
    size_t n = read_file(process, "cmdline", words, sizeof words);
    for (size_t i = 0; i < n; i++)
        if (!words[i])
            words[i] = ' ';
    if (strstr(words, "commands.autostart"))
        return "starter";
    return strstr(words, "daemon.lifecycle") ? "daemon" : "beside";
}

static int is_ours(const struct seccomp_data *call) {
    if (call->nr == SYS_openat)
        return (call->args[2] & O_CLOEXEC) != 0;
    return call->nr != SYS_clone || (call->args[0] & CLONE_UNTRACED);
}

static int is_about(const struct fault *f, const struct seccomp_data *call, const char *role) {
    if (call->nr != f->number || (strcmp(f->who, "any") != 0 && strcmp(f->who, role) != 0))
        return 0;
    return strcmp(f->who, "program") != 0 || is_ours(call);
}

/* Returns the index of the fault that this call gets, or -1. */
static int met_by(const struct seccomp_notif *asked) {
    pid_t process = process_of((pid_t)asked->pid);
    const char *role = role_of(process);
    if (process == program && asked->data.nr == SYS_openat && !is_ours(&asked->data))
        counted = 0; /* the program itself has opened a file */
    for (int i = 0; i < fault_count; i++)
        if (!faults[i].after && is_about(&faults[i], &asked->data, role))
            return i;
    while (current < fault_count && !faults[current].after)
        current++;
    if (current == fault_count || !is_about(&faults[current], &asked->data, role))
        return -1;
    made = process == counted ? made + 1 : 1;
    counted = process;
    if (made != faults[current].after)
        return -1;
    made = NOT_AGAIN;
    return current++;
}

/* Answers one question of the filter. If the call is to get a fault, either makes the call fail or
 * sends the process a signal. The process is blocked in the system call until the answer arrives,
 * so the signal kills or stops the process in this call. */
static void answer(int listener, const struct seccomp_notif *asked) {
    struct seccomp_notif_resp response = {.id = asked->id,
                                          .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    int at = met_by(asked);
    if (at >= 0)
        dprintf(log_fd, "%d %u\n", at, asked->pid);
    if (at >= 0 && faults[at].error) {
        response.error = -faults[at].error;
        response.flags = 0;
    } else if (at >= 0) {
        kill((pid_t)asked->pid, faults[at].signal);
    }
    /* This ioctl fails if the signal has already ended the system call. */
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
}

/* Answers the filter's questions until no process has the filter any more. Then ends the
 * supervisor. */
static void supervise(int listener) {
    struct pollfd ready = {listener, POLLIN, 0};
    alarm(LIMIT_S);
    while (poll(&ready, 1, -1) == 1 && !(ready.revents & POLLHUP)) {
        struct seccomp_notif asked;
        memset(&asked, 0, sizeof asked);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) == 0)
            answer(listener, &asked);
    }
    _exit(0);
}

static int receive(int from) {
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    int fd;
    if (recvmsg(from, &message, 0) != 1 || !CMSG_FIRSTHDR(&message))
        _exit(1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* --- in the process that will run COMMAND ----------------------------------------------------- */

static void send_to(int to, int fd) {
    char byte = 0, room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    if (sendmsg(to, &message, 0) != 1)
        die("sendmsg");
}

/* Adds two instructions to the filter. They make the kernel ask the supervisor before each system
 * call with this number. Returns the new number of instructions. */
static unsigned short ask_before(int number, struct sock_filter *code, unsigned short n) {
    code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    return n;
}

/* Installs the filter, which asks the supervisor before each call that a fault names. If the
 * program is to get a fault, the filter also asks before each openat, because the program's own
 * opens reset the count. Returns the descriptor at which the supervisor receives the questions. */
static int install(void) {
    struct sock_filter code[2 * MOST_FAULTS + 8];
    unsigned short n = 0;
    code[n++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    int is_in_program = 0;
    for (int i = 0; i < fault_count; i++) {
        n = ask_before(faults[i].number, code, n);
        is_in_program |= strcmp(faults[i].who, "program") == 0;
    }
    if (is_in_program)
        n = ask_before(SYS_openat, code, n);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {n, code};
    if (geteuid() != 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        die("prctl");
    long fd =
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
    if (fd < 0)
        die("seccomp");
    return (int)fd;
}

int main(int n, char **words) {
    int at = 2, both[2];
    for (; at < n && strcmp(words[at], "--") != 0; at++)
        read_fault(words[at]);
    if (at + 1 >= n ||
        (log_fd = open(words[1], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) < 0)
        die("usage");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both) != 0)
        die("socketpair");
    program = getpid();
    /* The supervisor is made by two forks, so that it is not a child of the program. It closes its
     * inherited ends of the program's pipes. So readers of these pipes see end-of-file when the
     * program ends. */
    pid_t between = fork();
    if (between == 0 && fork() == 0) {
        int null = open("/dev/null", O_RDWR);
        for (int fd = 0; fd < MOST_DESCRIPTORS; fd++)
            if (fd < 3)
                dup2(null, fd);
            else if (fd != both[1] && fd != log_fd)
                close(fd);
        setsid();
        supervise(receive(both[1]));
    }
    if (between == 0)
        _exit(0);
    waitpid(between, NULL, 0);
    int listener = install();
    send_to(both[0], listener);
    close(listener);
    close(both[0]);
    close(both[1]);
    close(log_fd);
    execvp(words[at + 1], words + at + 1);
    die(words[at + 1]);
}
