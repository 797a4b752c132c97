/* Before a call of posix_spawn, records the files that the child will open for writing.
 *
 * libc opens these files in the child, and the library does not see these opens. A relative path
 * starts from the child's working directory, which earlier actions may change. So the library must
 * read the whole list of actions to find out where a path leads.
 *
 * The layout of the list is private to libc, but has never changed. Before the library reads a list
 * for the first time, it lets libc make a list of known actions, and checks that this list has the
 * expected layout. */
#include <errno.h>
#include <string.h>

#include "preload/changes/record.h"
#include "preload/process/calls.h"
#include "preload/session/session.h"
#include "shared/path.h"
#include "shared/sys.h"

enum tag { CLOSE, DUP2, OPEN, CHDIR, FCHDIR }; /* newer versions of libc have further tags */

struct action {
    int tag;
    union {
        int fd; /* of an FCHDIR */
        struct {
            int from, to;
        } dup2;
        struct {
            int fd;
            const char *path;
            int flags;
            mode_t mode;
        } open;
        const char *directory; /* of a CHDIR */
    };
};

static const struct action *actions_of(const posix_spawn_file_actions_t *actions) {
    return (const void *)actions->__actions;
}

typedef int add_chdir(posix_spawn_file_actions_t *, const char *);
typedef int add_fchdir(posix_spawn_file_actions_t *, int);

/* Adds to `list`, which has two actions already, two actions that change the child's directory.
 * Returns whether the new actions have the expected layout. Returns 1 for glibc before 2.29, which
 * has no such actions. */
static int directories_are_as_expected(posix_spawn_file_actions_t *list) {
    void *chdir_at = NULL, *fchdir_at = NULL;
    add_chdir *chdir_to =
        (add_chdir *)monarch_real_find(&chdir_at, "posix_spawn_file_actions_addchdir_np");
    add_fchdir *fchdir_to =
        (add_fchdir *)monarch_real_find(&fchdir_at, "posix_spawn_file_actions_addfchdir_np");
    if (!chdir_to || !fchdir_to)
        return 1;
    if (chdir_to(list, "d") != 0 || fchdir_to(list, 5) != 0)
        return 0;
    const struct action *x = actions_of(list);
    return list->__used == 4 && x[2].tag == CHDIR && strcmp(x[2].directory, "d") == 0 &&
           x[3].tag == FCHDIR && x[3].fd == 5;
}

static int layout_is_as_expected(void) {
    posix_spawn_file_actions_t list;
    if (posix_spawn_file_actions_init(&list) != 0)
        return 0;
    int right = REAL(posix_spawn_file_actions_addopen)(&list, 3, "f", 17, 0640) == 0 &&
                posix_spawn_file_actions_adddup2(&list, 3, 4) == 0 && list.__used == 2;
    const struct action *x = actions_of(&list);
    right = right && x[0].tag == OPEN && x[0].open.fd == 3 && x[0].open.flags == 17 &&
            x[0].open.mode == 0640 && strcmp(x[0].open.path, "f") == 0 && x[1].tag == DUP2 &&
            x[1].dup2.from == 3 && x[1].dup2.to == 4 && directories_are_as_expected(&list);
    posix_spawn_file_actions_destroy(&list);
    return right;
}

static int is_known_layout(void) {
    /* Atomic. 0: the layout of libc's list was not checked yet; 1: libc's list has the expected
     * layout; 2: it has another layout */
    static uint32_t known;
    uint32_t found = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!found) {
        found = layout_is_as_expected() ? 1 : 2;
        __atomic_store_n(&known, found, __ATOMIC_RELAXED);
    }
    return found == 1;
}

/* Puts `part` in front of the path that is at the end of the buffer, with a slash between the two.
 * *at: index at which the path begins; it is updated. Returns 0 if there is no room. */
static int put_before(char *buffer, size_t *at, const char *part) {
    size_t n = strlen(part);
    if (n + 1 > *at)
        return 0;
    *at -= n + 1;
    memcpy(buffer + *at, part, n);
    buffer[*at + n] = buffer[*at + n + 1] ? '/' : 0;
    return 1;
}

/* Writes to the end of `buffer` the path that action `i` opens. A relative path starts from the
 * directory *dir, which is AT_FDCWD or a descriptor of this process. Returns the path, or NULL if
 * it is too long. */
static char *path_opened(const struct action *x, int i, char *buffer, int *dir) {
    size_t at = MONARCH_PATH_MAX - 1;
    buffer[at] = 0;
    *dir = AT_FDCWD;
    int fits = put_before(buffer, &at, x[i].open.path);
    for (int j = i - 1; fits && j >= 0 && buffer[at] != '/'; j--) {
        if (*dir == AT_FDCWD && x[j].tag == CHDIR) {
            fits = put_before(buffer, &at, x[j].directory);
        } else if (*dir == AT_FDCWD && x[j].tag == FCHDIR) {
            *dir = x[j].fd;
        } else if (*dir != AT_FDCWD && x[j].tag == DUP2 && x[j].dup2.to == *dir) {
            *dir = x[j].dup2.from;
        } else if (*dir != AT_FDCWD && x[j].tag == OPEN && x[j].open.fd == *dir) {
            *dir = AT_FDCWD;
            fits = put_before(buffer, &at, x[j].open.path);
        }
    }
    return fits ? buffer + at : NULL;
}

__attribute__((noinline)) static void record(const struct action *x, int i) {
    char buffer[MONARCH_PATH_MAX];
    int dir, flags = x[i].open.flags;
    char *path = path_opened(x, i, buffer, &dir);
    if (path)
        monarch_changed_file(dir, path, !(flags & O_NOFOLLOW));
    if (path && flags & O_CREAT)
        monarch_changed_names_of(dir, path);
}

static void record_opened(const posix_spawn_file_actions_t *list) {
    MAYBE_NULL(list);
    if (!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE) || !list || list->__used <= 0)
        return;
    int old_errno = errno;
    const struct action *x = actions_of(list);
    for (int i = 0; is_known_layout() && i < list->__used; i++)
        if (x[i].tag == OPEN && monarch_may_change(x[i].open.flags))
            record(x, i);
    errno = old_errno;
}

/* --- calls ------------------------------------------------------------------------------------ */

PUBLIC int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attributes, char *const argv[],
                       char *const envp[]) {
    record_opened(actions);
    return REAL(posix_spawn)(pid, path, actions, attributes, argv, envp);
}

PUBLIC int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attributes, char *const argv[],
                        char *const envp[]) {
    record_opened(actions);
    return REAL(posix_spawnp)(pid, file, actions, attributes, argv, envp);
}

/* glibc has had these two functions since version 2.39. */
int pidfd_spawn(int *pidfd, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]);
int pidfd_spawnp(int *pidfd, const char *file, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]);

PUBLIC int pidfd_spawn(int *pidfd, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attributes, char *const argv[],
                       char *const envp[]) {
    record_opened(actions);
    return REAL(pidfd_spawn) ? REAL(pidfd_spawn)(pidfd, path, actions, attributes, argv, envp)
                             : ENOSYS;
}

PUBLIC int pidfd_spawnp(int *pidfd, const char *file, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attributes, char *const argv[],
                        char *const envp[]) {
    record_opened(actions);
    return REAL(pidfd_spawnp) ? REAL(pidfd_spawnp)(pidfd, file, actions, attributes, argv, envp)
                              : ENOSYS;
}
