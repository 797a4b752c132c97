/* Starts processes and threads in many ways, and shares descriptors of copies with them. */
#include "processes.h"

#include <pthread.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <linux/close_range.h>

/* Prints the descriptors that are open when a program starts, except its standard streams. */
static void show(void) {
    for (int fd = 3; fd < 100; fd++) {
        struct stat st;
        int flags = fcntl(fd, F_GETFD);
        if (flags < 0 || fstat(fd, &st) != 0)
            continue;
        printf("%d: flags %d %x\n", fd, flags, fcntl(fd, F_GETFL));
        if (S_ISREG(st.st_mode)) {
            tell_file("file", fd, "f");
            tell_rest("rest", fd);
        }
    }
    tell_rest("opened", reading("f"));
}

/* Prints only the content of open files, and not their attributes. If this program runs without the
 * library and inherits a descriptor of a copy, it sees the attributes of the copy. */
static void show_bytes(void) {
    for (int fd = 3; fd < 100; fd++)
        if (lseek(fd, 0, SEEK_CUR) >= 0)
            tell_rest("rest", fd);
    tell_rest("opened", reading("f"));
}

static void in_fork(void *fd) {
    tell_file("inherited", *(int *)fd, "f");
    CHECK(lseek(*(int *)fd, 1000, SEEK_CUR) > 0);
    tell_rest("opened", reading("f"));
    close(*(int *)fd);
}

static void op_fork(void) {
    int fd = reading("f");
    CHECK(lseek(fd, 500, SEEK_SET) == 500);
    in_child("child", in_fork, &fd);
    tell_rest("parent", fd);
}

static void take_records(void *argument) {
    int *fds = argument;
    char record[64];
    uint64_t sums[2] = {0, 0};
    while (read(fds[0], record, sizeof record) == (ssize_t)sizeof record) {
        sums[0] += digest_of(record, sizeof record, 0);
        sums[1]++;
    }
    CHECK(write(fds[1], sums, sizeof sums) == (ssize_t)sizeof sums);
}

/* The children share one offset, so each record must be read by exactly one of them. */
static void op_fork_shares_offset(void) {
    int ends[2];
    uint64_t sums[2], total[2] = {0, 0};
    CHECK(pipe(ends) == 0);
    int fds[2] = {reading("f"), ends[1]};
    pid_t children[4];
    for (int i = 0; i < 4; i++)
        if (!(children[i] = fork())) {
            take_records(fds);
            _exit(0);
        }
    for (int i = 0; i < 4; i++) {
        reap("child", children[i]);
        CHECK(read(ends[0], sums, sizeof sums) == (ssize_t)sizeof sums);
        total[0] += sums[0];
        total[1] += sums[1];
    }
    printf("%ld records %016lx\n", (long)total[1], (unsigned long)total[0]);
}

static void op_fork_in_fork(void) {
    int fd = reading("f");
    in_child("child", in_fork, &fd);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        int mine = reading("g");
        in_child("grandchild", in_fork, &fd);
        tell_rest("child", mine);
        fflush(stdout);
        _exit(0);
    }
    reap("child", child);
    tell_rest("parent", fd);
}

static void op_vfork_exec(void) {
    int fd = reading("f"), low = reading("g");
    char *const *words = command("show");
    CHECK(lseek(fd, 700, SEEK_SET) == 700);
    fflush(stdout);
    pid_t child = vfork();
    if (!child) {
        dup2(fd, 20);
        close(fd);
        close(low);
        execve(self, words, environ);
        _exit(127);
    }
    reap("child", child);
    tell_rest("after", fd);
    tell_rest("low", low);
}

/* Opens a file in the child of a vfork. Until its exec, the child runs in the parent's memory. */
static void op_vfork_opens(void) {
    const char *path = in("f");
    char *const *words = command("show");
    fflush(stdout);
    pid_t child = vfork();
    if (!child) {
        int fd = open(path, O_RDONLY);
        struct stat st;
        if (fd != 3 || stat(path, &st) != 0 || fstat(fd, &st) != 0 || lseek(fd, 10, SEEK_SET) != 10)
            _exit(126);
        execve(self, words, environ);
        _exit(127);
    }
    reap("child", child);
    tell_rest("parent", reading("f"));
}

static void spawn(posix_spawn_file_actions_t *actions, char *const *env) {
    pid_t child;
    fflush(stdout);
    int error = posix_spawn(&child, self, actions, NULL, command("show"), env);
    printf("posix_spawn = %d\n", error);
    if (!error)
        reap("child", child);
}

static void op_spawn(void) {
    int fd = reading("f");
    CHECK(lseek(fd, 300, SEEK_SET) == 300);
    spawn(NULL, environ);
    tell_rest("after", fd);
}

static void op_spawn_actions(void) {
    posix_spawn_file_actions_t actions;
    int kept = reading("f"), closed = reading("f"), hidden = open(in("f"), O_RDONLY | O_CLOEXEC);
    CHECK(lseek(kept, 300, SEEK_SET) == 300 && posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_addopen(&actions, 30, in("f"), O_RDONLY, 0) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, kept, 31) == 0);
    /* This file action duplicates a descriptor onto itself. In the child, this clears the
     * descriptor's close-on-exec flag. */
    CHECK(posix_spawn_file_actions_adddup2(&actions, hidden, hidden) == 0);
    CHECK(posix_spawn_file_actions_addclose(&actions, closed) == 0);
    spawn(&actions, environ);
    posix_spawn_file_actions_destroy(&actions);
    tell_rest("kept", kept);
    tell_rest("closed", closed);
}

static void op_exec_inherits(void) {
    int a = reading("f"), b = open(in("f"), O_RDONLY | O_CLOEXEC), c = dup(a);
    FILE *kept = fopen(in("f"), "r"), *gone = fopen(in("f"), "re");
    CHECK(b >= 0 && c >= 0 && kept && gone);
    CHECK(fcntl(a, F_DUPFD_CLOEXEC, 40) == 40 && fcntl(b, F_DUPFD, 50) == 50);
    CHECK(dup3(a, 60, O_CLOEXEC) == 60 && fseek(kept, 900, SEEK_SET) == 0 && getc(kept) != EOF);
    CHECK(lseek(a, 123, SEEK_SET) == 123);
    CHECK(fcntl(reading("f"), F_SETFD, FD_CLOEXEC) == 0);
    fflush(stdout);
    execv(self, command("show"));
    fail(__FILE__, __LINE__, "exec");
}

static void op_exec_without_environment(void) {
    char *nothing[] = {NULL};
    int fd = reading("f");
    CHECK(lseek(fd, 123, SEEK_SET) == 123);
    fflush(stdout);
    execve(self, command("show_bytes"), nothing);
    fail(__FILE__, __LINE__, "exec");
}

/* --- the close-on-exec flag: exactly as requested --- */

int __open_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);

static void op_cloexec(void) {
    const char *f = in("f"), *g = in("g");
    const int flags[] = {0, O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK | O_CLOEXEC, O_NOCTTY, O_LARGEFILE};
    int dir = open(here, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        int fds[] = {open(f, flags[i]),          open64(g, flags[i]),
                     openat(dir, "f", flags[i]), openat64(dir, "./g", flags[i]),
                     __open_2(f, flags[i]),      __openat_2(dir, "d/x", flags[i]),
                     openat(-1, f, flags[i])};
        for (size_t j = 0; j < sizeof fds / sizeof *fds; j++)
            printf("%x %zu: %d %x\n", flags[i], j, fcntl(fds[j], F_GETFD), fcntl(fds[j], F_GETFL));
    }
    const char *const modes[] = {"r", "re", "rb", "rce", "rme", "r,ccs=UTF-8"};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        FILE *a = fopen(f, modes[i]), *b = freopen(g, modes[i], fopen(f, "r"));
        CHECK(a && b);
        printf("%s: %d %d %x\n", modes[i], fcntl(fileno(a), F_GETFD), fcntl(fileno(b), F_GETFD),
               fcntl(fileno(b), F_GETFL));
    }
    fflush(stdout);
    execv(self, command("show"));
    fail(__FILE__, __LINE__, "exec");
}

/* --- descriptors --- */

static void op_duplicates(void) {
    int fd = reading("f");
    CHECK(lseek(fd, 400, SEEK_SET) == 400);
    int all[] = {dup(fd), dup2(fd, 33), dup3(fd, 34, O_CLOEXEC), fcntl(fd, F_DUPFD, 10),
                 fcntl(fd, F_DUPFD_CLOEXEC, 10)};
    SAY(close(fd));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        printf("%d: %d %x\n", all[i], fcntl(all[i], F_GETFD), fcntl(all[i], F_GETFL));
        tell_file("duplicate", all[i], "f");
    }
    tell_rest("first", all[0]);
    CHECK(lseek(all[3], 0, SEEK_SET) == 0);
    tell_rest("last", all[4]);
    SAY(dup2(reading("g"), all[0]));
    tell_file("replaced", all[0], "g");
    tell_file("not replaced", all[1], "f");
}

static void op_ranges(void) {
    int low = reading("f");
    for (int i = 0; i < 20; i++)
        reading(i % 2 ? "f" : "g");
    SAY(syscall(SYS_close_range, low + 3, low + 7, 0));
    printf("%lx\n", (unsigned long)open_descriptors());
    SAY(reading("g"));
    SAY(syscall(SYS_close_range, low + 10, ~0U, CLOSE_RANGE_CLOEXEC));
    printf("%d %d\n", fcntl(low + 9, F_GETFD), fcntl(low + 10, F_GETFD));
    SAY(close_range((unsigned)low + 12, ~0U, 0));
    printf("%lx\n", (unsigned long)open_descriptors());
    SAY(reading("f"));
    SAY(reading("f"));
    closefrom(low + 1);
    printf("%lx\n", (unsigned long)open_descriptors());
    tell_rest("left", low);
    tell_rest("again", reading("f"));
}

static void send_descriptor(int channel, int fd) {
    char byte = 'f', room[CMSG_SPACE(sizeof fd)] = "";
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(channel, &message, 0) == 1);
}

static int receive_descriptor(int channel, int flags) {
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    int fd;
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    CHECK(recvmsg(channel, &message, flags) == 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* Receives a descriptor from socket 20. The program has never opened the descriptor's file
 * itself. */
static void receive(void) {
    int fd = receive_descriptor(20, MSG_CMSG_CLOEXEC);
    printf("%d: %d %x\n", fd, fcntl(fd, F_GETFD), fcntl(fd, F_GETFL));
    tell_file("received", fd, "f");
    CHECK(lseek(fd, 50, SEEK_CUR) == 150);
    SAY(fchmod(fd, 0640));
    struct stat st;
    CHECK(stat(in("f"), &st) == 0);
    printf("%o\n", st.st_mode);
}

static void op_rights(void) {
    int ends[2], fd = reading("f");
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    CHECK(lseek(fd, 100, SEEK_SET) == 100);
    send_descriptor(ends[0], fd);
    send_descriptor(ends[0], fd);
    pid_t child;
    posix_spawn_file_actions_t actions;
    CHECK(posix_spawn_file_actions_init(&actions) == 0 &&
          posix_spawn_file_actions_adddup2(&actions, ends[1], 20) == 0 &&
          posix_spawn_file_actions_addclose(&actions, fd) == 0);
    fflush(stdout);
    CHECK(posix_spawn(&child, self, &actions, NULL, command("receive"), environ) == 0);
    reap("child", child);
    close(fd);
    /* Both messages carry a descriptor of the same open file. The child has received the first
     * message, and has moved the file's offset. This process has closed its own descriptor. The
     * descriptor that it now receives with the second message must have the offset that the child
     * has set. */
    int again = receive_descriptor(ends[1], 0);
    tell_file("here", again, "f");
    tell_rest("here", again);
}

/* --- threads --- */

static void *read_in_thread(void *number) {
    static const char *const names[] = {"f", "g", "d/x", "to_f", "d/../f", "./g"};
    char *buf = malloc(100000);
    uint64_t digest = 0;
    for (size_t round = 0; round < 60; round++) {
        int fd = reading(names[((size_t)number + round) % 6]), twin = dup(fd);
        struct stat st;
        close(fd);
        CHECK(twin >= 0 && fstat(twin, &st) == 0 && st.st_size <= 100000);
        CHECK(pread(twin, buf, 100000, 0) == st.st_size);
        digest += digest_of(buf, (size_t)st.st_size, 0);
        close(twin);
    }
    free(buf);
    return (void *)digest;
}

static void op_threads(void) {
    pthread_t threads[8];
    void *digest;
    for (size_t i = 0; i < 8; i++)
        CHECK(pthread_create(&threads[i], NULL, read_in_thread, (void *)i) == 0);
    for (size_t i = 0; i < 8; i++) {
        CHECK(pthread_join(threads[i], &digest) == 0);
        printf("thread %zu %016lx\n", i, (unsigned long)digest);
    }
    printf("%lx\n", (unsigned long)open_descriptors());
}

static void fork_in_thread(void *fd) {
    tell_rest("child", *(int *)fd);
    printf("%016lx\n", (unsigned long)read_in_thread(NULL));
}

static void *fork_once(void *fd) {
    in_child("child", fork_in_thread, fd);
    return NULL;
}

/* Forks while other threads are opening and reading files. */
static void op_threads_and_forks(void) {
    pthread_t threads[3];
    for (size_t i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, read_in_thread, (void *)i) == 0);
    for (int i = 0; i < 8; i++) {
        int fd = reading("f");
        fork_once(&fd);
        close(fd);
    }
    for (size_t i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

const struct process_case of_start[] = {
    {"show", show},
    {"show_bytes", show_bytes},
    {"receive", receive},
    {"fork", op_fork},
    {"fork_shares_offset", op_fork_shares_offset},
    {"fork_in_fork", op_fork_in_fork},
    {"vfork_exec", op_vfork_exec},
    {"vfork_opens", op_vfork_opens},
    {"spawn", op_spawn},
    {"spawn_actions", op_spawn_actions},
    {"exec_inherits", op_exec_inherits},
    {"exec_without_environment", op_exec_without_environment},
    {"cloexec", op_cloexec},
    {"duplicates", op_duplicates},
    {"ranges", op_ranges},
    {"rights", op_rights},
    {"threads", op_threads},
    {"threads_and_forks", op_threads_and_forks},
    {NULL, NULL},
};
