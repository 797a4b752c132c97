/* Changes the file `f0` of a directory without calling open(). So a library that interposes only
 * open() does not see the change.
 *
 *   unseen METHOD DIRECTORY
 *
 * Ends with status 77 if the system does not support METHOD. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x)                                                       \
    do {                                                               \
        if (!(x)) {                                                    \
            fprintf(stderr, "%s:%d %s: %m\n", __FILE__, __LINE__, #x); \
            exit(1);                                                   \
        }                                                              \
    } while (0)

extern char **environ;
int __open64(const char *path, int flags, ...);
FILE *_IO_fopen(const char *path, const char *mode);
/* Many versions of libc lack these functions: see newer_libc.c. */
int openat2(int dir, const char *path, const struct open_how *how, size_t n);
typedef int pidfd_spawn_call(int *, const char *, const posix_spawn_file_actions_t *,
                             const posix_spawnattr_t *, char *const[], char *const[]);
pidfd_spawn_call pidfd_spawn, pidfd_spawnp;

static const char *directory;
static posix_spawn_file_actions_t actions;

static void spawn(void) {
    char *argv[] = {(char *)"echo", (char *)"SPAWNED", NULL};
    pid_t child;
    int status;
    CHECK(posix_spawn(&child, "/bin/echo", &actions, NULL, argv, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    posix_spawn_file_actions_destroy(&actions);
}

static void add_output(const char *path) {
    CHECK(posix_spawn_file_actions_addopen(&actions, 1, path, O_WRONLY, 0) == 0);
}

static void spawn_chdir(void) {
    CHECK(chdir("/") == 0);
    CHECK(posix_spawn_file_actions_addchdir_np(&actions, directory + 1) == 0);
    add_output("f0");
    spawn();
}

static void spawn_chdir_twice(void) {
    CHECK(posix_spawn_file_actions_addchdir_np(&actions, directory) == 0);
    CHECK(posix_spawn_file_actions_addchdir_np(&actions, "d") == 0);
    add_output("../f0");
    spawn();
}

static void spawn_fchdir(void) {
    int fd = open(directory, O_RDONLY | O_DIRECTORY);
    CHECK(fd >= 0 && posix_spawn_file_actions_addfchdir_np(&actions, fd) == 0);
    add_output("f0");
    spawn();
}

static void spawn_fchdir_to_what_it_opens(void) {
    CHECK(posix_spawn_file_actions_addopen(&actions, 9, directory, O_RDONLY | O_DIRECTORY, 0) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, 9, 8) == 0);
    CHECK(posix_spawn_file_actions_addfchdir_np(&actions, 8) == 0);
    add_output("f0");
    spawn();
}

static void spawn_after_chdir(void) {
    CHECK(chdir("/") == 0);
    add_output("f0");
    CHECK(chdir(directory) == 0);
    spawn();
}

static void write_to(int fd) { CHECK(fd >= 0 && write(fd, "SPAWNED\n", 8) == 8 && close(fd) == 0); }

static void old_open(void) {
    CHECK(chdir(directory) == 0);
    write_to(__open64("f0", O_WRONLY));
}

static void old_fopen(void) {
    FILE *f;
    CHECK(chdir(directory) == 0 && (f = _IO_fopen("f0", "r+")));
    CHECK(fputs("SPAWNED\n", f) >= 0 && fclose(f) == 0);
}

static void by_handle(void) {
    char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    struct file_handle *handle = (void *)room;
    int mount, fd, dir = open(directory, O_RDONLY | O_DIRECTORY);
    handle->handle_bytes = MAX_HANDLE_SZ;
    if (name_to_handle_at(dir, "f0", handle, &mount, 0) != 0)
        exit(77);
    if ((fd = open_by_handle_at(dir, handle, O_WRONLY | O_TRUNC)) < 0)
        exit(77);
    write_to(fd);
}

static void by_openat2(uint64_t more) {
    struct open_how how = {.flags = O_WRONLY | more};
    int dir = open(directory, O_RDONLY | O_DIRECTORY);
    int fd = openat2(dir, "f0", &how, sizeof how);
    if (fd < 0 && errno == ENOSYS)
        exit(77);
    write_to(fd);
}

static void openat2_write(void) { by_openat2(0); }
static void openat2_truncate(void) { by_openat2(O_TRUNC); }

static void spawn_pidfd_by(pidfd_spawn_call *call, const char *program) {
    char *argv[] = {(char *)"echo", (char *)"SPAWNED", NULL};
    int fd = -1;
    CHECK(chdir("/") == 0);
    add_output("f0");
    CHECK(chdir(directory) == 0);
    int error = call(&fd, program, &actions, NULL, argv, environ);
    if (error == ENOSYS)
        exit(77);
    siginfo_t ended;
    CHECK(error == 0 && waitid(P_PIDFD, (id_t)fd, &ended, WEXITED) == 0 && ended.si_status == 0);
}

static void spawn_pidfd(void) { spawn_pidfd_by(pidfd_spawn, "/bin/echo"); }
static void spawn_pidfd_of_path(void) { spawn_pidfd_by(pidfd_spawnp, "echo"); }

static const struct {
    const char *name;
    void (*run)(void);
} ways[] = {
    {"spawn_chdir", spawn_chdir},
    {"spawn_chdir_twice", spawn_chdir_twice},
    {"spawn_fchdir", spawn_fchdir},
    {"spawn_fchdir_to_what_it_opens", spawn_fchdir_to_what_it_opens},
    {"spawn_after_chdir", spawn_after_chdir},
    {"old_open", old_open},
    {"old_fopen", old_fopen},
    {"by_handle", by_handle},
    {"openat2_write", openat2_write},
    {"openat2_truncate", openat2_truncate},
    {"spawn_pidfd", spawn_pidfd},
    {"spawn_pidfd_of_path", spawn_pidfd_of_path},
};

int main(int argc, char **argv) {
    CHECK(argc == 3 && posix_spawn_file_actions_init(&actions) == 0);
    directory = argv[2];
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (strcmp(argv[1], ways[i].name) == 0) {
            ways[i].run();
            return 0;
        }
    return 1;
}
