/* Runs a program and puts one fault into one of its system calls.
 *
 *   faulter CALLS PREFIX LOG trace                 -- COMMAND...
 *   faulter CALLS PREFIX LOG ACTION NTH CLASS      -- COMMAND...
 *
 * CALLS lists the observed system calls, joined by commas. Each of them is written as
 * NUMBER:TARGET. NUMBER is the number of the system call. TARGET says which argument names a file:
 * "f0" if argument 0 is a descriptor, "p1" if argument 1 is a path, and "n" if no argument names a
 * file. A call's class consists of the thread's name, the call's number, the path of the file, and
 * return addresses on the stack. Only return addresses in Monarch's own modules count, written as
 * MODULE+OFFSET. PREFIX is DIRECTORY:DIRECTORY...; if the path is below one of these directories,
 * the name of the directory is left out. Of any other path, only the first component counts.
 * Numbers in the path are replaced by #.
 *
 * With trace, each call's class is written to LOG as one line. Calls that differ only in their
 * stacks are of one kind. After many calls of a kind in a row without a new class, the faulter logs
 * no further calls of this kind. Without trace, the NTH call of CLASS, counted from 1, gets ACTION:
 *
 *   error=ERRNO   the error is returned, and the call is not made
 *   answer=ERRNO  the error is returned after the call was made
 *   short         the call is made with half of the number of bytes
 *   delay=MS      the call is made after this time [ms]
 *   kill          the program is killed (SIGKILL)
 *
 * LOG then gets the line "hit".
 *
 * After the end of COMMAND, the faulter waits until all processes that COMMAND started have ended,
 * but for LINGER_S at most. Then it ends with COMMAND's status. If some processes still run after
 * LINGER_S, LOG gets the line "lingered". If a signal ends COMMAND, the processes started by
 * COMMAND are killed. The faulter does not pass SIGSTOP on to the program. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <libunwind-ptrace.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_CALLS 128
#define MOST_THREADS 1024
#define MOST_RANGES 8
/* At most MOST_FRAMES frames of a stack are read. Up to DEEPEST frames of libc may lie between the
 * system call and Monarch's innermost function. */
#define MOST_FRAMES 32
#define DEEPEST 5
#define KEY_BYTES 2048
/* The size of libunwind's cache, in code addresses. For each address, the cache stores how to find
 * the caller. Without the cache, unwinding takes long. */
#define UNWOUND_PLACES 4096
/* How long the faulter waits for other processes after COMMAND's end [s]. A daemon that nobody
 * stops ends on its own in less time. */
#define LINGER_S 15

struct looked {
    long number;
    char kind;
    int argument;
};

static struct looked looked[MOST_CALLS];
static int looked_count;
static const char *prefix, *action, *wanted;
static FILE *log_file;
static long countdown;
static pid_t program;
static unw_addr_space_t unwound;

/* The addresses at which the code of one of Monarch's modules is mapped. */
struct range {
    uint64_t from, to, base;
    char name[32];
};

/* A thread, and the fault that its present call gets. */
static struct thread {
    pid_t tid;
    int error;         /* the call returns -error; 0: it returns its own result */
    uint64_t until_ns; /* the thread is delayed until this time; 0: it is not delayed */
    uint64_t asked;    /* the number of bytes that the call requested, before the fault halved it;
                        * 0: the fault does not halve it */
    void *remote;      /* libunwind's state for the thread */
    int is_mapping;    /* the call maps code */
    /* the value that `mapped` (see below) had when `ranges` was read; 0: not read yet */
    unsigned long ranges_at;
    int range_count; /* the number of elements of `ranges` that are in use */
    /* where Monarch's modules are mapped in the thread's process */
    struct range ranges[MOST_RANGES];
} threads[MOST_THREADS];

/* How many elements of `threads` have ever been used. */
static int used_threads;
/* 1 plus the number of times that any process has mapped code. */
static unsigned long mapped = 1;

static void die(const char *what) {
    fprintf(stderr, "faulter: %s: %s\n", what, strerror(errno));
    exit(125);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static struct thread *thread_of(pid_t tid) {
    struct thread *unused = NULL;
    for (int i = 0; i < used_threads; i++) {
        if (threads[i].tid == tid)
            return &threads[i];
        if (!threads[i].tid && !unused)
            unused = &threads[i];
    }
    if (!unused && used_threads == MOST_THREADS)
        die("too many threads");
    unused = unused ? unused : &threads[used_threads++];
    *unused = (struct thread){.tid = tid};
    return unused;
}

/* --- the class of a call -------------------------------------------------------------------------
 */

static uint64_t argument(const struct user_regs_struct *r, int i) {
    const unsigned long long all[] = {r->rdi, r->rsi, r->rdx, r->r10, r->r8, r->r9};
    return all[i];
}

static const struct looked *looked_at(long number) {
    for (int i = 0; i < looked_count; i++)
        if (looked[i].number == number)
            return &looked[i];
    return NULL;
}

/* Reads memory of another process. Returns how many bytes could be read. */
static size_t peek(pid_t tid, uint64_t at, void *to, size_t n) {
    struct iovec here = {to, n}, there = {(void *)(uintptr_t)at, n};
    ssize_t got = process_vm_readv(tid, &here, 1, &there, 1, 0);
    return got < 0 ? 0 : (size_t)got;
}

/* Reads a string of another process, at most up to the end of the page in which it begins. */
static void peek_string(pid_t tid, uint64_t at, char *to, size_t n) {
    size_t page = 4096 - at % 4096, got = at ? peek(tid, at, to, n - 1 < page ? n - 1 : page) : 0;
    to[got] = 0;
}

static size_t read_link(pid_t tid, int fd, char *to, size_t n) {
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/fd/%d", tid, fd);
    ssize_t got = readlink(name, to, n - 1);
    to[got < 0 ? 0 : got] = 0;
    return got < 0 ? 0 : (size_t)got;
}

/* Writes to `to` a simplified form of `path`, for the text of a call's class. If the path is below
 * a directory of `prefix`, this directory is removed. Any other path is cut to its first component.
 * Decimal numbers, and hexadecimal numbers of 8 or more digits, become #. */
static void put_plain(char *to, size_t n, const char *path) {
    size_t at = 0, length = strlen(path), top = *path == '/' ? strcspn(path + 1, "/") + 1 : length;
    for (const char *p = prefix; *p; p += strcspn(p, ":"), p += *p == ':') {
        size_t below = strcspn(p, ":");
        if (strncmp(path, p, below) == 0 && (path[below] == '/' || !path[below])) {
            path += below;
            length = top = strlen(path);
            break;
        }
    }
    length = top < length ? top : length;
    for (size_t i = 0; path[i] && i < length && at + 1 < n; i++) {
        int is_number = isdigit((unsigned char)path[i]);
        for (size_t run = i; !is_number && isxdigit((unsigned char)path[run]); run++)
            is_number = run - i >= 7;
        if (!is_number) {
            to[at++] = path[i] == ' ' || path[i] == '|' ? '_' : path[i];
            continue;
        }
        to[at++] = '#';
        while (isxdigit((unsigned char)path[i + 1]))
            i++;
    }
    to[at] = 0;
}

static void put_target(pid_t tid, const struct looked *l, const struct user_regs_struct *r,
                       char *to, size_t n) {
    char path[512] = "";
    if (l->kind == 'p')
        peek_string(tid, argument(r, l->argument), path, sizeof path);
    if (l->kind == 'f')
        read_link(tid, (int)argument(r, l->argument), path, sizeof path);
    put_plain(to, n, path);
}

static void put_name(pid_t tid, char *to, size_t n) {
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/comm", tid);
    FILE *f = fopen(name, "re");
    size_t got = f ? fread(to, 1, n - 1, f) : 0, at = 0;
    if (f)
        fclose(f);
    for (size_t i = 0; i < got; i++)
        if (to[i] != '\n' && !isdigit((unsigned char)to[i]))
            to[at++] = to[i] == ' ' || to[i] == '|' ? '_' : to[i];
    to[at] = 0;
}

static int find_ranges(pid_t tid, struct range ranges[MOST_RANGES]) {
    char name[64], line[1024], rights[8], path[512];
    int n = 0;
    snprintf(name, sizeof name, "/proc/%d/maps", tid);
    FILE *f = fopen(name, "re");
    while (f && n < MOST_RANGES && fgets(line, sizeof line, f)) {
        unsigned long from, to, offset;
        *path = 0;
        if (sscanf(line, "%lx-%lx %7s %lx %*s %*s %511s", &from, &to, rights, &offset, path) < 4 ||
            rights[2] != 'x')
            continue;
        const char *file = strrchr(path, '/');
        if (!file || (strncmp(file, "/libmonarch", 11) != 0 && strncmp(file, "/_native", 8) != 0))
            continue;
        ranges[n].from = from;
        ranges[n].to = to;
        ranges[n].base = from - offset;
        snprintf(ranges[n].name, sizeof ranges[n].name, "%.*s", (int)strcspn(file + 1, "."),
                 file + 1);
        n++;
    }
    if (f)
        fclose(f);
    return n;
}

static size_t put_frame(char *to, size_t n, const struct range *ranges, int count, uint64_t at) {
    for (int i = 0; i < count; i++)
        if (at >= ranges[i].from && at < ranges[i].to)
            return (size_t)snprintf(to, n, "%s+%lx,", ranges[i].name,
                                    (unsigned long)(at - ranges[i].base));
    return 0;
}

static void forget_stack(struct thread *t) {
    if (t->remote)
        _UPT_destroy(t->remote);
    t->remote = NULL;
    t->ranges_at = 0;
}

/* A module appears in /proc/PID/maps only when the mmap of its code has returned. So `mapped` is
 * increased not at this mmap, but at the thread's next call. */
static void heed_mapping(struct thread *t, const struct user_regs_struct *r) {
    mapped += t->is_mapping != 0;
    t->is_mapping = r->orig_rax == SYS_mmap && (argument(r, 2) & PROT_EXEC);
}

static void put_stack(struct thread *t, char *to, size_t n) {
    if (t->ranges_at != mapped) {
        t->range_count = find_ranges(t->tid, t->ranges);
        t->ranges_at = mapped;
    }
    const struct range *ranges = t->ranges;
    int count = t->range_count;
    unw_cursor_t cursor;
    *to = 0;
    if (!count || !(t->remote = t->remote ? t->remote : _UPT_create(t->tid)))
        return;
    int more = unw_init_remote(&cursor, unwound, t->remote) == 0;
    for (size_t at = 0, i = 0; more && i < MOST_FRAMES && at + 64 < n; i++) {
        unw_word_t ip;
        if (unw_get_reg(&cursor, UNW_REG_IP, &ip) != 0)
            break;
        size_t put = put_frame(to + at, n - at, ranges, count, ip);
        if (!put && (at || i >= DEEPEST))
            break;
        at += put;
        more = unw_step(&cursor) > 0;
    }
}

/* Returns whether `target`, which put_plain() has written, stands for a file that only the
 * interpreter uses. If the file belongs to the scenario, put_plain() has cut off the beginning of
 * its path, and the rest is no existing path. Otherwise put_plain() has kept only the top directory
 * of the path, such as /usr, which exists. Only the interpreter uses files there, except in /dev,
 * /proc and /sys, which Monarch reads too. */
static int is_the_interpreters(const char *target) {
    return *target == '/' && access(target, F_OK) == 0 && strcmp(target, "/dev") != 0 &&
           strcmp(target, "/proc") != 0 && strcmp(target, "/sys") != 0;
}

/* A kind consists of all classes of calls that differ only in their stacks. The table contains both
 * kinds and classes, each with the hash of its text. `quiet` counts the calls of a kind since the
 * last call with a new class. When `quiet` reaches ENOUGH, the stacks of further calls of this kind
 * are not read, because reading a stack takes long. */
#define MOST_KINDS 4096
#define ENOUGH 200
static struct kind {
    uint64_t hash;
    unsigned quiet;
    int is_known; /* for a class: whether it has occurred before */
} kinds[MOST_KINDS];

static uint64_t hash_of(const char *text) {
    uint64_t hash = 14695981039346656037ULL;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211ULL;
    return hash ? hash : 1;
}

static struct kind *kind_of(const char *text) {
    uint64_t hash = hash_of(text), i = hash % MOST_KINDS;
    for (int looks = 0; kinds[i].hash && kinds[i].hash != hash; i = (i + 1) % MOST_KINDS)
        if (++looks == MOST_KINDS)
            die("too many kinds of calls");
    kinds[i].hash = hash;
    return &kinds[i];
}

/* Puts the call's class into *to: its kind, followed by the stack. If the stack is not needed,
 * returns 0 without reading it. The stack is not needed if the kind already differs from that of
 * the wanted class, or if the last ENOUGH calls of this kind had no new stacks. */
static int put_class(struct thread *t, const struct looked *l, const struct user_regs_struct *r,
                     char *to) {
    char name[32], target[256], stack[1024] = "";
    put_name(t->tid, name, sizeof name);
    put_target(t->tid, l, r, target, sizeof target);
    int at = snprintf(to, KEY_BYTES, "%s|%ld|%s|", name, l->number, target);
    struct kind *kind = wanted ? NULL : kind_of(to);
    if (kind ? kind->quiet >= ENOUGH : strncmp(wanted, to, (size_t)at) != 0)
        return 0;
    if (!is_the_interpreters(target))
        put_stack(t, stack, sizeof stack);
    snprintf(to + at, KEY_BYTES - (size_t)at, "%s", stack);
    if (kind) {
        struct kind *class = kind_of(to);
        kind->quiet = class->is_known ? kind->quiet + 1 : 0;
        class->is_known = 1;
    }
    return 1;
}

/* --- faults --------------------------------------------------------------------------------------
 */

static void set_registers(pid_t tid, struct user_regs_struct *r) {
    if (ptrace(PTRACE_SETREGS, tid, NULL, r) != 0 && errno != ESRCH)
        die("PTRACE_SETREGS");
}

static void say_hit(void) {
    fprintf(log_file, "hit\n");
    fflush(log_file);
}

/* Halves the number of bytes to transfer. This number is the third argument of every call that gets
 * the fault `short` (`can_be_short` in calls.py). */
static void shorten(struct thread *t, struct user_regs_struct *r) {
    t->asked = r->rdx;
    r->rdx = r->rdx > 1 ? r->rdx / 2 : r->rdx;
    set_registers(t->tid, r);
}

/* Restores the register that `shorten` has changed. Then checks the number of bytes that the call
 * has transferred. If it differs from the shortened number, for example at the end of a file, the
 * next call of the class gets the fault. */
static void end_short(struct thread *t) {
    struct user_regs_struct r;
    uint64_t asked = t->asked;
    t->asked = 0;
    if (ptrace(PTRACE_GETREGS, t->tid, NULL, &r) != 0)
        return;
    r.rdx = asked;
    set_registers(t->tid, &r);
    if (asked > 1 && r.rax == asked / 2)
        say_hit();
    else
        countdown = 1;
}

static pid_t process_of(pid_t tid) {
    char name[64], line[256];
    int process = tid;
    snprintf(name, sizeof name, "/proc/%d/status", tid);
    FILE *f = fopen(name, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Tgid: %d", &process) == 1)
            break;
    if (f)
        fclose(f);
    return process;
}

static void put_fault(struct thread *t, struct user_regs_struct *r) {
    if (strcmp(action, "short") == 0) {
        shorten(t, r);
        return;
    }
    if (strcmp(action, "kill") == 0 && process_of(t->tid) != program) {
        /* "kill" would kill the program, but this call is made by another process that the program
         * has started. So the next call of the class gets the fault instead. */
        countdown = 1;
        return;
    }
    say_hit();
    if (strncmp(action, "error=", 6) == 0) {
        t->error = atoi(action + 6);
        r->orig_rax = (unsigned long long)-1;
        set_registers(t->tid, r);
    } else if (strncmp(action, "answer=", 7) == 0) {
        t->error = atoi(action + 7);
    } else if (strncmp(action, "delay=", 6) == 0) {
        t->until_ns = now_ns() + strtoull(action + 6, NULL, 10) * 1000000;
    } else {
        kill(program, SIGKILL);
    }
}

static void meet_call(struct thread *t) {
    struct user_regs_struct r;
    char key[KEY_BYTES];
    if (ptrace(PTRACE_GETREGS, t->tid, NULL, &r) != 0)
        return;
    heed_mapping(t, &r);
    const struct looked *l = looked_at((long)r.orig_rax);
    if (!l || (wanted && countdown <= 0))
        return;
    if (!put_class(t, l, &r, key))
        return;
    if (!wanted)
        fprintf(log_file, "%s\n", key);
    else if (strcmp(key, wanted) == 0 && --countdown == 0)
        put_fault(t, &r);
}

/* Makes a call return the error. Called at the end of the call, even if the kernel has skipped the
 * call itself. */
static void end_failing(struct thread *t) {
    struct user_regs_struct r;
    int error = t->error;
    t->error = 0;
    if (ptrace(PTRACE_GETREGS, t->tid, NULL, &r) != 0)
        return;
    r.rax = (unsigned long long)-error;
    set_registers(t->tid, &r);
}

/* --- the program ---------------------------------------------------------------------------------
 */

static void go_on(struct thread *t, int signal) {
    if (!t->until_ns)
        ptrace(t->error || t->asked ? PTRACE_SYSCALL : PTRACE_CONT, t->tid, NULL, (long)signal);
}

/* Resumes the threads whose delay is over. Returns whether any thread is still delayed. */
static int end_delays(void) {
    int is_any = 0;
    uint64_t now = now_ns();
    for (int i = 0; i < used_threads; i++) {
        if (!threads[i].until_ns)
            continue;
        is_any |= threads[i].until_ns > now;
        if (threads[i].until_ns <= now) {
            threads[i].until_ns = 0;
            go_on(&threads[i], 0);
        }
    }
    return is_any;
}

static void meet_stop(struct thread *t, int status) {
    int signal = WSTOPSIG(status), event = status >> 16;
    if (event == PTRACE_EVENT_SECCOMP)
        meet_call(t);
    else if (event == PTRACE_EVENT_EXEC)
        forget_stack(t);
    else if (signal == (SIGTRAP | 0x80) && t->error)
        end_failing(t);
    else if (signal == (SIGTRAP | 0x80) && t->asked)
        end_short(t);
    int is_own = event || signal == (SIGTRAP | 0x80) || signal == SIGSTOP;
    go_on(t, is_own ? 0 : signal);
}

static void forget_thread(struct thread *t) {
    forget_stack(t);
    *t = (struct thread){0};
}

/* Called after the program's end. Traces the other processes until all have ended, but not for
 * longer than LINGER_S. */
static void linger(void) {
    signal(SIGTERM, SIG_DFL);
    uint64_t until_ns = now_ns() + LINGER_S * 1000000000ULL;
    for (int status; now_ns() < until_ns;) {
        end_delays();
        pid_t tid = waitpid(-1, &status, __WALL | WNOHANG);
        if (tid < 0 && errno != EINTR)
            return;
        if (tid <= 0)
            usleep(1000);
        else if (WIFSTOPPED(status))
            meet_stop(thread_of(tid), status);
        else
            forget_thread(thread_of(tid));
    }
    fprintf(log_file, "lingered\n");
    fflush(log_file);
}

static int follow(void) {
    for (int status;;) {
        int are_delayed = end_delays();
        pid_t tid = waitpid(-1, &status, __WALL | (are_delayed ? WNOHANG : 0));
        if (tid < 0 && errno != EINTR)
            return 0;
        if (tid <= 0) {
            usleep(1000);
            continue;
        }
        if (WIFSTOPPED(status)) {
            meet_stop(thread_of(tid), status);
            continue;
        }
        forget_thread(thread_of(tid));
        if (tid == program && WIFEXITED(status)) {
            linger();
            return WEXITSTATUS(status);
        }
        if (tid == program) {
            signal(WTERMSIG(status), SIG_DFL);
            raise(WTERMSIG(status));
            return 128 + WTERMSIG(status);
        }
    }
}

/* The library must be preloaded into the program, but not into the tracer. So the tracer keeps the
 * value of LD_PRELOAD for the program in this variable. */
#define PRELOAD "FAULTER_PRELOAD"

static void give_up_preload(char **argv) {
    const char *preload = getenv("LD_PRELOAD");
    if (!preload)
        return;
    setenv(PRELOAD, preload, 1);
    unsetenv("LD_PRELOAD");
    execv("/proc/self/exe", argv);
    die("/proc/self/exe");
}

/* Closes the descriptors that the program has inherited from the tracer. While the tracer keeps
 * them open, the other end of a pipe or a socket does not notice that the program has ended. */
static void give_up_descriptors(void) {
    for (int fd = 3; fd < 1024; fd++)
        if (fd != fileno(log_file))
            close(fd);
}

/* Passes on to the program a signal that would end the tracer. */
static void end_program(int number) { kill(program, number); }

static void become(char **command) {
    struct sock_filter code[2 * MOST_CALLS + 2];
    unsigned short n = 0;
    code[n++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < looked_count; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                                                 (unsigned)looked[i].number, 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {n, code};
    char *preload = getenv(PRELOAD);
    if (preload)
        setenv("LD_PRELOAD", preload, 1);
    unsetenv(PRELOAD);
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        die("PTRACE_TRACEME");
    raise(SIGSTOP); /* stops this process until the tracer has set its options */
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) != 0)
        die("seccomp");
    execvp(command[0], command);
    die(command[0]);
}

static void take_calls(char *text) {
    for (char *word = strtok(text, ","); word && looked_count < MOST_CALLS;
         word = strtok(NULL, ",")) {
        struct looked *l = &looked[looked_count++];
        l->argument = 0;
        if (sscanf(word, "%ld:%c%d", &l->number, &l->kind, &l->argument) < 2)
            die(word);
    }
}

int main(int argc, char **argv) {
    int is_trace = argc > 4 && strcmp(argv[4], "trace") == 0, first = is_trace ? 6 : 8;
    if (argc <= first || strcmp(argv[first - 1], "--") != 0) {
        fprintf(stderr, "usage: faulter CALLS PREFIX LOG trace | ACTION NTH CLASS -- COMMAND\n");
        return 125;
    }
    give_up_preload(argv);
    const struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    take_calls(argv[1]);
    prefix = argv[2];
    log_file = fopen(argv[3], "we");
    if (!log_file)
        die(argv[3]);
    action = is_trace ? NULL : argv[4];
    countdown = is_trace ? 0 : atol(argv[5]);
    wanted = is_trace ? NULL : argv[6];
    unwound = unw_create_addr_space(&_UPT_accessors, 0);
    unw_set_caching_policy(unwound, UNW_CACHE_GLOBAL);
    unw_set_cache_size(unwound, UNWOUND_PLACES, 0);
    program = fork();
    if (program == 0)
        become(argv + first);
    int status;
    if (program < 0 || waitpid(program, &status, 0) != program)
        die("fork");
    long options = PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACESECCOMP |
                   PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
                   PTRACE_O_TRACEEXEC;
    if (ptrace(PTRACE_SETOPTIONS, program, NULL, options) != 0)
        die("PTRACE_SETOPTIONS");
    give_up_descriptors();
    struct sigaction pass_on = {.sa_handler = end_program};
    sigaction(SIGTERM, &pass_on, NULL);
    signal(SIGINT, SIG_IGN);
    go_on(thread_of(program), 0);
    return follow();
}
