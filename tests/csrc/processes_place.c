/* Three kinds of cases: the root or a mount of a process changes, so that a path leads to another
 * file; a process runs as another user; a process reads through the library, and the library must
 * not change the process's state. */
#include "processes.h"

#include <dirent.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { NOBODY = 65534 };

/* Prints what several kinds of calls find at the case's paths. */
static void look(const char *when) {
    struct stat st;
    FILE *f = fopen(in("f"), "r");
    int dir = open(here, O_RDONLY | O_DIRECTORY);
    printf("-- %s\n", when);
    tell_rest("open", open(in("f"), O_RDONLY));
    tell_rest("fopen", f ? fileno(f) : -1);
    tell_rest("odd", open(in("d/..//f"), O_RDONLY));
    tell_rest("openat", openat(dir, "f", O_RDONLY));
    if (SAY(stat(in("f"), &st)) == 0)
        printf("%o %ld\n", st.st_mode, (long)st.st_size);
    if (SAY(lstat(in("to_f"), &st)) == 0)
        printf("%o %ld\n", st.st_mode, (long)st.st_size);
    if (f)
        fclose(f);
    close(dir);
}

/* --- another root ------------------------------------------------------------------------------
 */

static void op_chroot(void) {
    int root = open("/", O_RDONLY | O_DIRECTORY);
    look("before");
    CHECK(chdir(here) == 0 && chroot(out("root")) == 0);
    look("inside");
    tell_rest("still at", open("f", O_RDONLY));
    CHECK(chdir("/") == 0);
    tell_rest("relative", open(in("f") + 1, O_RDONLY));
    CHECK(fchdir(root) == 0 && chroot(".") == 0);
    look("out again");
}

static void leave_root(void *directory) {
    CHECK(chroot(directory) == 0 && chdir("/") == 0);
    look("child");
}

static void op_chroot_of_child(void) {
    look("before");
    in_child("child", leave_root, (void *)out("root"));
    look("parent");
}

/* --- another mount -----------------------------------------------------------------------------
 */

static const char *source_of(const char *path) {
    char *parent = strdup(path);
    *strrchr(parent, '/') = 0;
    return parent;
}

static void own_mounts(void) {
    CHECK(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
}

static void hide(const char *with, const char *what) {
    CHECK(mount(with, what, NULL, MS_BIND, NULL) == 0);
}

static void op_mount_over_source(void) {
    look("before");
    own_mounts();
    hide(out("other"), source_of(here));
    look("after");
    CHECK(umount2(source_of(here), MNT_DETACH) == 0 && unshare(CLONE_NEWNS) == 0);
    look("gone again");
}

static void op_mount_after_a_look(void) {
    own_mounts();
    look("still the source");
    hide(out("other"), source_of(here));
    look("after");
}

static void op_mount_and_exec(void) {
    own_mounts();
    hide(out("other"), source_of(here));
    fflush(stdout);
    execv(self, command("show"));
    fail(__FILE__, __LINE__, "exec");
}

static void op_mount_over_directory(void) {
    look("before");
    own_mounts();
    hide(joined(out("other"), strrchr(here, '/') + 1), here);
    look("after");
}

/* The root of the source is still the same directory, but another directory is mounted below it. */
static void op_mount_over_directory_and_exec(void) {
    own_mounts();
    hide(joined(out("other"), strrchr(here, '/') + 1), here);
    fflush(stdout);
    execv(self, command("show"));
    fail(__FILE__, __LINE__, "exec");
}

static void op_mount_over_file(void) {
    look("before");
    own_mounts();
    hide(in("g"), in("f"));
    look("after");
}

static void mount_in_child(void *unused) {
    (void)unused;
    own_mounts();
    hide(out("other"), source_of(here));
    look("child");
}

/* The new root directory contains the source, but not the tiers. */
static void op_chroot_with_the_source(void) {
    own_mounts();
    hide(source_of(here), joined(out("root"), source_of(here)));
    leave_root((void *)out("root"));
}

static void op_mount_in_child(void) {
    look("before");
    in_child("child", mount_in_child, NULL);
    look("parent");
}

static _Alignas(16) char stack[256 << 10];

static pid_t cloned(int (*run)(void *), int flags) {
    fflush(stdout);
    pid_t child = clone(run, stack + sizeof stack, flags | SIGCHLD, NULL);
    CHECK(child > 0);
    return child;
}

static int run_in_own_mounts(void *unused) {
    (void)unused;
    CHECK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    hide(out("other"), source_of(here));
    look("child");
    fflush(stdout);
    return 0;
}

static void op_mount_in_clone(void) {
    look("before");
    reap("child", cloned(run_in_own_mounts, CLONE_NEWNS));
    look("parent");
}

static int to_child[2], to_parent[2];

static void hand_over(const int *to) { CHECK(write(to[1], "", 1) == 1); }

static void await_turn(const int *to) {
    char byte;
    CHECK(read(to[0], &byte, 1) == 1);
}

/* The child shares the parent's memory, but has another root. So no variable in memory can show
 * which of the two processes is running. */
static int run_in_own_root(void *unused) {
    (void)unused;
    CHECK(chroot(out("root")) == 0 && chdir("/") == 0);
    hand_over(to_parent);
    await_turn(to_child);
    look("child");
    return 0;
}

static void op_chroot_in_clone(void) {
    look("before");
    CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
    pid_t child = cloned(run_in_own_root, CLONE_VM);
    await_turn(to_parent);
    look("parent");
    hand_over(to_child);
    reap("child", child);
    look("parent");
}

static void op_setns(void) {
    int ours = open("/proc/self/ns/mnt", O_RDONLY);
    own_mounts();
    hide(out("other"), source_of(here));
    look("other");
    CHECK(setns(ours, CLONE_NEWNS) == 0);
    look("ours");
}

/* --- another user ------------------------------------------------------------------------------
 */

static void look_as_user(const char *when) {
    struct stat st;
    look(when);
    errno = SENTINEL;
    SAY(close(open(in("f"), O_RDONLY)));
    CHECK(errno == SENTINEL);
    SAY(open(in("secret"), O_RDONLY));
    SAY(stat(in("secret"), &st));
    SAY(open(in("closed/x"), O_RDONLY));
    SAY(open(in("f"), O_RDWR));
    CHECK(chdir(here) == 0);
    tell_rest("relative", open("f", O_RDONLY));
}

static void op_other_user(void) {
    int fd = reading("f");
    CHECK(setgroups(0, NULL) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0 &&
          setresuid(NOBODY, NOBODY, NOBODY) == 0);
    look_as_user("nobody");
    tell_file("opened before", fd, "f");
    tell_rest("opened before", fd);
}

static void op_other_user_for_a_while(void) {
    look("root");
    CHECK(seteuid(NOBODY) == 0);
    look_as_user("nobody");
    CHECK(seteuid(0) == 0);
    look("root again");
}

static void stat_closed(const char *when) {
    struct stat st;
    struct statx stx;
    printf("-- %s\n", when);
    SAY(stat(in("closed/x"), &st));
    SAY(lstat(in("closed/x"), &st));
    SAY(fstatat(AT_FDCWD, in("closed/../closed/x"), &st, 0));
    SAY(statx(AT_FDCWD, in("closed/x"), 0, STATX_SIZE, &stx));
    SAY(open(in("closed/x"), O_RDONLY));
}

/* Gets the attributes of a file, first as the file's owner, and then as a user who may not search
 * the file's directory. */
static void op_stat_as_other_user(void) {
    stat_closed("its owner");
    CHECK(setgroups(0, NULL) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0);
    stat_closed("nobody");
}

/* Gets the attributes as the session's user without the rights of root, so that the modes of the
 * user's own directories apply. */
static void op_stat_without_rights(void) {
    drop_rights();
    stat_closed("open to its owner");
    CHECK(chmod(in("closed"), 0) == 0);
    stat_closed("closed to everybody");
    CHECK(chmod(in("closed"), 0700) == 0);
    stat_closed("open again");
}

/* --- the state of a reader ---------------------------------------------------------------------
 */

static void tell_entries(const char *directory) {
    DIR *d = opendir(directory);
    int count = 0;
    CHECK(d);
    while (readdir(d))
        count++;
    closedir(d);
    printf("%s: %d\n", directory, count);
}

static void op_state(void) {
    struct stat st;
    reading("f");
    for (int i = 0; i < 200; i++)
        CHECK(close(reading("f")) == 0 && stat(in("d/x"), &st) == 0);
    tell_entries("/proc/self/task");
    tell_entries("/proc/self/fd");
    for (char **variable = environ; *variable; variable++)
        if (strncmp(*variable, "LD_PRELOAD=", 11) && strncmp(*variable, "MONARCH_CONFIG=", 15))
            puts(*variable);
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) == 0)
            printf("%d: %p %x\n", number, (void *)action.sa_handler, action.sa_flags);
    }
    sigset_t blocked;
    stack_t stack;
    CHECK(sigprocmask(SIG_BLOCK, NULL, &blocked) == 0 && sigaltstack(NULL, &stack) == 0);
    printf("%016lx %x\n", (unsigned long)digest_of(&blocked, 8, 0), stack.ss_flags);
    printf("%o %d %d\n", umask(0), prctl(PR_GET_DUMPABLE), prctl(PR_GET_CHILD_SUBREAPER));
    printf("%s\n", getcwd(NULL, 0));
}

/* fcloseall also closes standard output. So the result is written to a duplicate of descriptor 1.
 */
static void op_fcloseall(void) {
    int left = reading("f"), said = fcntl(1, F_DUPFD, 30);
    FILE *streams[] = {fopen(in("f"), "r"), fopen(in("g"), "r"), fdopen(dup(left), "r")};
    CHECK(streams[0] && streams[1] && streams[2] && getc(streams[0]) != EOF);
    int result = fcloseall();
    dprintf(said, "%d %lx %d\n", result, (unsigned long)open_descriptors(), reading("g"));
}

const struct process_case of_place[] = {
    {"chroot", op_chroot},
    {"chroot_of_child", op_chroot_of_child},
    {"chroot_with_the_source", op_chroot_with_the_source},
    {"mount_over_source", op_mount_over_source},
    {"mount_after_a_look", op_mount_after_a_look},
    {"mount_and_exec", op_mount_and_exec},
    {"mount_over_directory", op_mount_over_directory},
    {"mount_over_directory_and_exec", op_mount_over_directory_and_exec},
    {"mount_over_file", op_mount_over_file},
    {"mount_in_child", op_mount_in_child},
    {"mount_in_clone", op_mount_in_clone},
    {"chroot_in_clone", op_chroot_in_clone},
    {"setns", op_setns},
    {"other_user", op_other_user},
    {"other_user_for_a_while", op_other_user_for_a_while},
    {"stat_as_other_user", op_stat_as_other_user},
    {"stat_without_rights", op_stat_without_rights},
    {"state", op_state},
    {"fcloseall", op_fcloseall},
    {NULL, NULL},
};
