/* In this unit, no program is spawned. libc's spawn functions, and the library's functions that
 * record changes, are replaced by functions that only write down their calls. */
#include <string.h>

#include "preload/changes/record.h"
#include "preload/process/calls.h"
#include "steps.h"

/* Writes down a step that concerns a path, which is relative to the directory `dir`. */
static void step_at(const char *what, int dir, const char *path, const char *more) {
    if (dir == AT_FDCWD)
        step("%s %s%s", what, path, more);
    else
        step("%s %d:%s%s", what, dir, path, more);
    errno = ENOENT;
}
static void changed_file(int dir, const char *path, int follow) {
    step_at("file", dir, path, follow ? "" : " itself");
}
static void changed_names_of(int dir, const char *path) { step_at("names", dir, path, ""); }

/* The library determines the layout of libc's list of file actions by calling the libc functions
 * below. In a test, one of these calls can fail, or one value in the list can be wrong. `wrong`
 * names this call or this value. */
static const char *wrong = "";
static int add_dup2(posix_spawn_file_actions_t *list, int from, int to);
static void *find(const char *name);
static void destroy(posix_spawn_file_actions_t *list);
#define monarch_changed_file(dir, path, follow) changed_file(dir, path, follow)
#define monarch_changed_names_of(dir, path) changed_names_of(dir, path)
#define posix_spawn_file_actions_adddup2(list, from, to) add_dup2(list, from, to)
#define posix_spawn_file_actions_destroy(list) destroy(list)
#define monarch_real_find(at, name) find(name)
#include "preload/calls/spawn.c"
#undef posix_spawn_file_actions_adddup2
#undef posix_spawn_file_actions_destroy
#undef monarch_real_find

#include "made.h"

/* --- the layout of the list ------------------------------------------------------------------- */

static int is_spoilt;
/* Changes the value that `wrong` names. A second call restores it. */
static void spoil(posix_spawn_file_actions_t *l) {
    struct action *x = (struct action *)l->__actions;
    const struct {
        const char *name;
        int *field;
    } fields[] = {{"tag of open", &x[0].tag},          {"fd of open", &x[0].open.fd},
                  {"flags of open", &x[0].open.flags}, {"mode of open", (int *)&x[0].open.mode},
                  {"tag of dup2", &x[1].tag},          {"from of dup2", &x[1].dup2.from},
                  {"to of dup2", &x[1].dup2.to},       {"number", &l->__used},
                  {"tag of chdir", &x[2].tag},         {"tag of fchdir", &x[3].tag},
                  {"fd of fchdir", &x[3].fd},          {"number with directories", &l->__used}};
    for (unsigned i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!strcmp(wrong, fields[i].name))
            *fields[i].field ^= 64;
    if (!strcmp(wrong, "path of open"))
        *(char *)(uintptr_t)x[0].open.path ^= 1;
    if (!strcmp(wrong, "path of chdir"))
        *(char *)(uintptr_t)x[2].directory ^= 1;
    is_spoilt = !is_spoilt;
}
static int is_wrong(const char *name) { return !strcmp(wrong, name); }
/* Returns whether `wrong` names a call or value of the actions that change the directory. */
static int is_of_directories(void) {
    return strstr(wrong, "chdir") || strstr(wrong, "directories");
}

static posix_spawn_file_actions_addopen_call add_open_of_libc;
static int add_open(posix_spawn_file_actions_t *l, int fd, const char *path, int flags,
                    mode_t mode) {
    return is_wrong("open fails") ? ENOMEM : add_open_of_libc(l, fd, path, flags, mode);
}
static int add_dup2(posix_spawn_file_actions_t *l, int from, int to) {
    if (is_wrong("dup2 fails"))
        return ENOMEM;
    int r = posix_spawn_file_actions_adddup2(l, from, to);
    if (!is_of_directories())
        spoil(l);
    return r;
}
static int add_chdir_to(posix_spawn_file_actions_t *l, const char *path) {
    return is_wrong("chdir fails") ? ENOMEM : posix_spawn_file_actions_addchdir_np(l, path);
}
static int add_fchdir_to(posix_spawn_file_actions_t *l, int fd) {
    if (is_wrong("fchdir fails"))
        return ENOMEM;
    int r = posix_spawn_file_actions_addfchdir_np(l, fd);
    if (is_of_directories())
        spoil(l);
    return r;
}
static void *find(const char *name) {
    if (is_wrong("neither") || is_wrong(name))
        return NULL;
    return strcmp(name, "posix_spawn_file_actions_addchdir_np") ? (void *)add_fchdir_to
                                                                : (void *)add_chdir_to;
}
static void destroy(posix_spawn_file_actions_t *l) {
    if (is_spoilt)
        spoil(l);
    posix_spawn_file_actions_destroy(l);
}
/* Returns whether the library finds that the list has the expected layout. */
EXPORT int spawn_is_layout_expected(const char *step_that_is_wrong) {
    wrong = step_that_is_wrong;
    is_spoilt = 0;
    add_open_of_libc = REAL(posix_spawn_file_actions_addopen);
    monarch_real.posix_spawn_file_actions_addopen = (void *)add_open;
    int r = layout_is_as_expected();
    monarch_real.posix_spawn_file_actions_addopen = NULL;
    wrong = "";
    return r;
}

/* --- calls ------------------------------------------------------------------------------------ */

static posix_spawn_file_actions_t list;
EXPORT void spawn_begin(void) {
    posix_spawn_file_actions_init(&list);
    steps[0] = 0;
}
EXPORT void spawn_end(void) { posix_spawn_file_actions_destroy(&list); }
EXPORT int spawn_open(int fd, const char *path, int flags) {
    return REAL(posix_spawn_file_actions_addopen)(&list, fd, path, flags, 0600);
}
EXPORT int spawn_dup2(int from, int to) {
    return posix_spawn_file_actions_adddup2(&list, from, to);
}
EXPORT int spawn_close(int fd) { return posix_spawn_file_actions_addclose(&list, fd); }
EXPORT int spawn_chdir(const char *path) {
    return posix_spawn_file_actions_addchdir_np(&list, path);
}
EXPORT int spawn_fchdir(int fd) { return posix_spawn_file_actions_addfchdir_np(&list, fd); }

static int original(int *pid, const char *path, const posix_spawn_file_actions_t *actions,
                    const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]) {
    step_at("spawn", AT_FDCWD, path,
            attributes || argv != envp + 1 || errno != 54321 ? " with other arguments" : "");
    *pid = actions ? 17 : 18;
    return 19;
}
/* Makes the call. has_list: whether a list of actions is passed. is_there: whether libc has the
 * function. Returns what the call returns, or -1 if the caller has got a wrong pid. */
EXPORT int spawn_call(int call, int has_list, int is_there) {
    void *const real = is_there ? (void *)original : (void *)1;
    const posix_spawn_file_actions_t *actions = has_list ? &list : NULL;
    char *words[2] = {NULL, NULL};
    int pid = 0;
    monarch_real.posix_spawn = monarch_real.posix_spawnp = (void *)original;
    monarch_real.pidfd_spawn = monarch_real.pidfd_spawnp = real;
    errno = 54321;
    int r = call == 0   ? posix_spawn(&pid, "p", actions, NULL, words + 1, words)
            : call == 1 ? posix_spawnp(&pid, "p", actions, NULL, words + 1, words)
            : call == 2 ? pidfd_spawn(&pid, "p", actions, NULL, words + 1, words)
                        : pidfd_spawnp(&pid, "p", actions, NULL, words + 1, words);
    monarch_real.posix_spawn = monarch_real.posix_spawnp = NULL;
    monarch_real.pidfd_spawn = monarch_real.pidfd_spawnp = NULL;
    return !is_there || pid == 17 + !has_list ? r : -1;
}
EXPORT const char *spawn_steps(void) { return steps; }
EXPORT void spawn_without_session(void) { monarch_current = NULL; }
EXPORT int spawn_path_max(void) { return MONARCH_PATH_MAX; }
