/* Makes one call from the table of calls: prepares what the call needs, and cleans up after it. */
#include "processes.h"

#include <dirent.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

const char *const form_names[] = {"absolute", "relative",       "odd",
                                  "dirfd",    "through a link", "upwards"};

/* Returns a path, in the given form, to the file `name` in the directory `here`. The caller has
 * made `here` the working directory, so relative paths start there. */
static const char *spelled(enum form form, const char *name) {
    static char paths[2][8192];
    static int turn;
    char *path = paths[turn ^= 1];
    const char *last = strrchr(here, '/');
    switch (form) {
    case ABSOLUTE:
        snprintf(path, sizeof *paths, "%s/%s", here, name);
        break;
    case RELATIVE:
    case BY_DIRFD:
        snprintf(path, sizeof *paths, "%s", name);
        break;
    case ODD:
        snprintf(path, sizeof *paths, "%s//d/.././%s", here, name);
        break;
    case THROUGH_LINK:
        snprintf(path, sizeof *paths, "%s/to_here/%s", here, name);
        break;
    default:
        snprintf(path, sizeof *paths, "..%s/d/../%s", last, name);
    }
    return path;
}

static const char *suitable(enum kind kind) {
    static const char *const names[] = {
        [OPENS] = "f",   [STREAMS] = "f", [LOOKS] = "f",    [LISTS] = "d",
        [CHANGES] = "m", [MAKES] = "new", [TAKES] = "gone", [TAKES_DIR] = "gone_d",
        [MOVES] = "m",   [LINKS] = "m",   [ENTERS] = "d",   [BY_FD] = "x"};
    return names[kind];
}

static void prepare(const struct call *call) {
    syscall(SYS_unlinkat, AT_FDCWD, in("new"), 0);
    syscall(SYS_unlinkat, AT_FDCWD, in("moved"), 0);
    if (call->kind == TAKES)
        syscall(SYS_close, syscall(SYS_openat, AT_FDCWD, in("gone"), O_CREAT | O_WRONLY, 0644));
    else if (call->kind == TAKES_DIR)
        syscall(SYS_mkdirat, AT_FDCWD, in("gone_d"), 0755);
    if (strstr(call->name, "removexattr")) {
        syscall(SYS_setxattr, in("m"), "user.a", "x", 1, 0);
        syscall(SYS_setxattr, in("m"), "user.c", "x", 1, 0);
        syscall(SYS_setxattr, in("x"), "user.a", "x", 1, 0);
    }
}

static void clean_up(const struct trial *trial) {
    long r = trial->result;
    if (r < 0)
        return;
    if (strncmp(trial->call->name, "fopen", 5) == 0 ||
        strncmp(trial->call->name, "freopen", 7) == 0)
        fclose((FILE *)r);
    else if (trial->call->kind == LISTS)
        closedir((DIR *)r);
    else if (r > 0)
        syscall(SYS_close, r);
    if (trial->call->kind == MOVES)
        syscall(SYS_renameat, AT_FDCWD, in("moved"), AT_FDCWD, in("m"));
}

/* Makes the call. To measure the call's stack use, first fills the stack below this frame with a
 * pattern. After the call, searches for the lowest byte that the call has overwritten. */
__attribute__((noinline)) static void measured_call(struct trial *trial, int dir,
                                                    const char *path) {
    enum { OWN = 256, PAINT = 0xa5 };
    volatile unsigned char *top = __builtin_frame_address(0), *low = trial->paint;
    for (volatile unsigned char *at = low; at && at < top - OWN; at++)
        *at = PAINT;
    errno = SENTINEL;
    trial->result = trial->call->run(dir, path);
    trial->error = errno;
    while (low && *low == PAINT)
        low++;
    trial->stack = low ? (size_t)(top - low) : 0;
}

void try_call(struct trial *trial) {
    const struct call *call = trial->call;
    const char *name = trial->name ? trial->name : suitable(call->kind);
    int dir = AT_FDCWD, old = (int)syscall(SYS_openat, AT_FDCWD, ".", O_PATH);
    CHECK(old >= 0 && syscall(SYS_chdir, here) == 0);
    if (call->kind == BY_FD)
        dir = open(spelled(trial->form, name), O_RDONLY);
    else if (trial->form == BY_DIRFD && call->at)
        dir = (int)syscall(SYS_openat, AT_FDCWD, here, O_RDONLY | O_DIRECTORY);
    CHECK(dir >= 0 || dir == AT_FDCWD);
    prepare(call);
    set_other(dir, spelled(trial->form, "moved"));
    const char *path = spelled(trial->form, name);
    /* The earlier chdir was a direct system call, which the library did not see. */
    CHECK(chdir(here) == 0);
    measured_call(trial, dir, path);
    trial->opened = open_descriptors();
    clean_up(trial);
    if (dir >= 0)
        syscall(SYS_close, dir);
    syscall(SYS_fchdir, old);
    syscall(SYS_close, old);
}
