/* Functions of newer versions of libc, for systems whose libc lacks them. Like libc, this library
 * is loaded after Monarch's library, so Monarch does not see the calls inside these functions.
 */
#include <dlfcn.h>
#include <errno.h>
#include <linux/openat2.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int spawn_call(pid_t *, const char *, const posix_spawn_file_actions_t *,
                       const posix_spawnattr_t *, char *const[], char *const[]);

int openat2(int dir, const char *path, const struct open_how *how, size_t n) {
    return (int)syscall(SYS_openat2, dir, path, how, n);
}

static int spawn_by(const char *name, int *pidfd, const char *path,
                    const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                    char *const argv[], char *const envp[]) {
    pid_t child;
    spawn_call *spawn = (spawn_call *)dlsym(RTLD_NEXT, name);
    int error = spawn ? spawn(&child, path, actions, attributes, argv, envp) : ENOSYS;
    if (error)
        return error;
    *pidfd = (int)syscall(SYS_pidfd_open, child, 0);
    return *pidfd < 0 ? errno : 0;
}

int pidfd_spawn(int *pidfd, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]) {
    return spawn_by("posix_spawn", pidfd, path, actions, attributes, argv, envp);
}

int pidfd_spawnp(int *pidfd, const char *file, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]) {
    return spawn_by("posix_spawnp", pidfd, file, actions, attributes, argv, envp);
}
