#include "hold.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LIMIT_MS 60000
#define FIRST_NUMBER 600 /* the descriptors of hold() have this number or higher ones */

struct thread {
    pthread_t id;
    void (*run)(void);
    int call;
    long argument;
    int listener;
    /* A pipe. It gets a byte when the listener exists, and another one when run() has ended. */
    int done, into_done;
    int begins, into_begin; /* a pipe: gets a byte when the thread may begin */
};

void must(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

/* From now on, if this thread makes the system call `call` with `argument` as its first argument
 * (-1: any), the call waits until the listener answers. Returns the listener. */
static int ask_before(int call, long argument) {
    unsigned low = (unsigned)argument;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, low, 0, argument < 0 ? 0 : 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    long listener =
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    if (listener < 0) {
        perror("seccomp");
        exit(HOLD_UNAVAILABLE);
    }
    return (int)listener;
}

static void say(const struct thread *t) { must(write(t->into_done, "", 1) == 1, "write"); }

static void *run(void *data) {
    struct thread *t = data;
    char byte;
    t->listener = ask_before(t->call, t->argument);
    say(t);
    must(read(t->begins, &byte, 1) == 1, "read");
    t->run();
    say(t);
    return NULL;
}

static int high(int low) {
    int number = fcntl(low, F_DUPFD_CLOEXEC, FIRST_NUMBER);
    must(number >= 0 && close(low) == 0, "dup to a high number");
    return number;
}

static void begin(struct thread *t) {
    char byte;
    int ends[2];
    must(pipe(ends) == 0, "pipe");
    t->done = high(ends[0]);
    t->into_done = high(ends[1]);
    must(pipe(ends) == 0, "pipe");
    t->begins = high(ends[0]);
    t->into_begin = high(ends[1]);
    must(pthread_create(&t->id, NULL, run, t) == 0, "pthread_create");
    must(read(t->done, &byte, 1) == 1, "wait for the thread's filter");
    t->listener = high(t->listener);
    must(write(t->into_begin, "", 1) == 1, "write");
}

/* Waits until the thread is held before a call, or has ended. Returns whether it is held; *asked
 * then describes the call. */
static int asks(const struct thread *t, struct seccomp_notif *asked) {
    struct pollfd at[] = {{.fd = t->listener, .events = POLLIN}, {.fd = t->done, .events = POLLIN}};
    do
        must(poll(at, 2, LIMIT_MS) > 0, "poll");
    while (!((at[0].revents | at[1].revents) & POLLIN));
    if (!(at[0].revents & POLLIN))
        return 0;
    memset(asked, 0, sizeof *asked);
    must(ioctl(t->listener, SECCOMP_IOCTL_NOTIF_RECV, asked) == 0, "receive the held call");
    return 1;
}

static void let_go(const struct thread *t, const struct seccomp_notif *asked) {
    struct seccomp_notif_resp go = {.id = asked->id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    /* Linux before 5.5 does not know this flag, and returns EINVAL. */
    if (ioctl(t->listener, SECCOMP_IOCTL_NOTIF_SEND, &go) != 0)
        exit(errno == EINVAL ? HOLD_UNAVAILABLE : 1);
}

/* Lets the thread make all its further calls, until it ends. */
static void *finish(void *data) {
    struct thread *t = data;
    struct seccomp_notif asked;
    while (asks(t, &asked))
        let_go(t, &asked);
    pthread_join(t->id, NULL);
    return NULL;
}

int hold(int call, long argument, int nth, void (*first)(void), void (*second)(void)) {
    struct thread one = {.run = first, .call = call, .argument = argument};
    struct thread two = {.run = second, .call = SYS_sched_yield, .argument = -1};
    struct seccomp_notif held, yields;
    pthread_t finisher;
    int is_held;
    begin(&one);
    while ((is_held = asks(&one, &held)) && --nth)
        let_go(&one, &held);
    begin(&two);
    int waits = asks(&two, &yields);
    if (is_held)
        let_go(&one, &held);
    must(pthread_create(&finisher, NULL, finish, &one) == 0, "pthread_create");
    if (waits)
        let_go(&two, &yields);
    finish(&two);
    pthread_join(finisher, NULL);
    return is_held;
}

int hold_each(int call, long argument, void (*first)(void), void (*meanwhile)(void)) {
    struct thread one = {.run = first, .call = call, .argument = argument};
    struct seccomp_notif held;
    int calls = 0;
    begin(&one);
    for (; asks(&one, &held); calls++) {
        meanwhile();
        let_go(&one, &held);
    }
    pthread_join(one.id, NULL);
    return calls;
}
