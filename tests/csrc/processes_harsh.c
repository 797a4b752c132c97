/* Calls that are interrupted or cancelled, or that lack a resource. */
#include "processes.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>

static void use_it_all(const char *when) {
    struct stat st;
    printf("-- %s\n", when);
    for (int i = 0; i < 20; i++)
        CHECK(close(reading(i % 2 ? "f" : "d/x")) == 0);
    SAY(stat(in("f"), &st));
    int fd = reading("d/../f");
    tell_file("f", fd, "f");
    tell_rest("f", fd);
    CHECK(close(fd) == 0);
}

/* --- jumps out of signal handlers ---------------------------------------------------------------
 */

static sigjmp_buf start;
static volatile sig_atomic_t jumps;

static void jump(int number) {
    (void)number;
    jumps++;
    siglongjmp(start, 1);
}

static void every(long us) {
    struct itimerval timer = {{0, us}, {0, us}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void interrupted(const char *path, const char *odd) {
    struct stat st;
    switch (jumps % 4) {
    case 0:
        for (;;)
            syscall(SYS_close, open(path, O_RDONLY));
    case 1:
        for (;;)
            syscall(SYS_close, open(odd, O_RDONLY));
    case 2:
        for (;;)
            stat(odd, &st);
    default:
        for (;;)
            syscall(SYS_close, open(odd, O_RDWR));
    }
}

static void op_siglongjmp(void) {
    struct sigaction action = {.sa_handler = jump};
    const char *path = in("f"), *odd = in("d/..//m");
    alarm(0); /* ends the alarm of main(): alarm() uses ITIMER_REAL, and so does this case */
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    sigsetjmp(start, 1);
    /* Descriptors that were open when the handler jumped away stay open, with and without the
     * library. They are closed here. */
    syscall(SYS_close_range, 3, ~0U, 0);
    if (jumps < 3000) {
        every(97);
        interrupted(path, odd);
    }
    every(0);
    signal(SIGALRM, SIG_DFL);
    alarm(40);
    use_it_all("after 3000 jumps");
}

/* A signal handler makes the same calls as the code that it interrupts. */
static void call_again(int number) {
    struct stat st;
    int old = errno, fd = open(in("d/..//f"), O_RDONLY);
    (void)number;
    CHECK(fd >= 0 && fstat(fd, &st) == 0 && close(fd) == 0);
    jumps++;
    errno = old;
}

static void op_calls_in_handlers(void) {
    struct sigaction action = {.sa_handler = call_again, .sa_flags = SA_RESTART};
    struct stat st;
    const char *path = in("f"), *odd = in("d/..//f");
    alarm(0);
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    every(199);
    while (jumps < 1000) {
        errno = SENTINEL;
        int fd = open(jumps % 2 ? path : odd, O_RDONLY);
        CHECK(fd >= 0 && errno == SENTINEL && stat(odd, &st) == 0 && close(fd) == 0);
    }
    every(0);
    use_it_all("after 1000 signals");
}

/* --- cancellation ------------------------------------------------------------------------------
 */

static void *open_for_ever(void *unused) {
    const char *paths[] = {in("f"), in("d/..//f")};
    struct stat st;
    for (unsigned i = 0;; i++) {
        int fd = open(paths[i % 2], i % 3 ? O_RDONLY : O_RDWR);
        stat(paths[i % 2], &st);
        if (fd >= 0)
            syscall(SYS_close, fd);
    }
    return unused;
}

static void op_cancelled(void) {
    for (int i = 0; i < 200; i++) {
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, open_for_ever, NULL) == 0);
        usleep((useconds_t)(i % 10) * 30);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED);
    }
    use_it_all("after 200 cancellations");
}

static void *cancel_first(void *trial) {
    pthread_cancel(pthread_self());
    ((struct trial *)trial)
        ->call->run(((struct trial *)trial)->error, in(((struct trial *)trial)->name));
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    return NULL;
}

/* Prints for each call whether it is a cancellation point. At a cancellation point, a pending
 * cancellation ends the thread. */
static void op_cancellation_points(void) {
    static const char *const names[] = {
        [OPENS] = "f",   [STREAMS] = "f", [LOOKS] = "f",      [LISTS] = "d",
        [CHANGES] = "m", [TAKES] = "no",  [TAKES_DIR] = "no", [MOVES] = "no",
        [LINKS] = "no",  [ENTERS] = "d",  [BY_FD] = "f"};
    for (const struct call *call = calls; call->name; call++) {
        pthread_t thread;
        void *result;
        if (call->kind == MAKES)
            continue;
        struct trial trial = {.call = call, .name = names[call->kind]};
        trial.error = call->kind == BY_FD ? reading("x") : AT_FDCWD;
        set_other(AT_FDCWD, in("no2"));
        CHECK(pthread_create(&thread, NULL, cancel_first, &trial) == 0);
        CHECK(pthread_join(thread, &result) == 0);
        printf("%s: %s\n", call->name, result == PTHREAD_CANCELED ? "cancelled" : "went on");
    }
}

/* --- limits ------------------------------------------------------------------------------------
 */

static void op_no_descriptors(void) {
    struct rlimit few = {40, 40};
    struct stat st;
    FILE *kept = fopen(in("g"), "r");
    CHECK(kept && setrlimit(RLIMIT_NOFILE, &few) == 0);
    int last = -1, fd;
    while ((fd = open(in("f"), O_RDONLY)) >= 0)
        last = fd;
    printf("last %d, %s\n", last, strerrorname_np(errno));
    SAY(openat(AT_FDCWD, in("d/..//f"), O_RDONLY));
    SAY(open(in("m"), O_RDWR));
    SAY(fopen(in("f"), "r"));
    SAY(stat(in("f"), &st));
    SAY(fstat(last, &st));
    SAY(fchmod(last, 0644));
    SAY(close(last));
    /* One descriptor is free. freopen opens the file on this descriptor before it closes the
     * stream's old descriptor. */
    SAY(freopen(in("f"), "r", kept) != NULL);
    tell_file("reopened", fileno(kept), "f");
    tell_rest("reopened", fileno(kept));
    SAY(freopen(in("x"), "r", kept) != NULL);
    SAY(open(in("f"), O_RDONLY));
    SAY(freopen(in("f"), "r", kept) != NULL);
    struct rlimit none = {3, 40};
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    SAY(open(in("f"), O_RDONLY));
    closefrom(3);
    SAY(open(in("f"), O_RDONLY));
}

static void limit(int resource, rlim_t value) {
    struct rlimit both = {value, value};
    CHECK(setrlimit((__rlimit_resource_t)resource, &both) == 0);
}

static rlim_t mapped_now(void) {
    long pages = 0;
    char text[64] = "";
    int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/statm", O_RDONLY);
    CHECK(read(fd, text, sizeof text - 1) > 0 && sscanf(text, "%ld", &pages) == 1);
    syscall(SYS_close, fd);
    return (rlim_t)pages * 4096;
}

/* Limits the address space so far that the catalog does not fit into it. The catalog is not mapped
 * yet, because the library maps it only when it is first needed. */
static void op_no_address_space(void) {
    fflush(stdout);
    limit(RLIMIT_AS, mapped_now() + 300000);
    use_it_all("without room");
}

static void op_use(void) { use_it_all("started"); }

static void op_locked(void) {
    SAY(mlockall(MCL_CURRENT | MCL_FUTURE));
    use_it_all("locked");
    SAY(munlockall());
    use_it_all("unlocked");
}

static void op_locked_without_room(void) {
    limit(RLIMIT_MEMLOCK, 256 << 10);
    drop_rights();
    SAY(mlockall(MCL_FUTURE));
    use_it_all("locked");
}

/* Limits the size of files to 0. The library is not affected, because it writes to no file. */
static void op_no_file_size(void) {
    signal(SIGXFSZ, SIG_DFL);
    limit(RLIMIT_FSIZE, 0);
    use_it_all("without files");
}

const struct process_case of_harsh[] = {
    {"siglongjmp", op_siglongjmp},
    {"calls_in_handlers", op_calls_in_handlers},
    {"cancelled", op_cancelled},
    {"cancellation_points", op_cancellation_points},
    {"no_descriptors", op_no_descriptors},
    {"no_address_space", op_no_address_space},
    {"use", op_use},
    {"locked", op_locked},
    {"locked_without_room", op_locked_without_room},
    {"no_file_size", op_no_file_size},
    {NULL, NULL},
};
