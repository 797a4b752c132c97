#include "preload/changes/record.h"

#include <errno.h>
#include <string.h>

#include "preload/fill/serve.h"
#include "preload/lookup/where.h"
#include "preload/process/calls.h"
#include "preload/process/log.h"
#include "preload/process/momentary.h"
#include "preload/process/proc.h"
#include "preload/process/text.h"
#include "preload/session/tell.h"
#include "shared/sys.h"
#include "shared/xxh3.h"

/* Returns whether there is a daemon to which changes must be reported. Sets *s to its session, or
 * to NULL if this process lacks the address space to map the session's segments. */
static int is_heard(struct session **s) {
    *s = session_for_change();
    return *s || monarch_lacks_room();
}

static int is_on_source(const struct session *s, const struct stat *st) {
    return s && monarch_source_on(s, st->st_dev, 0) >= 0;
}

/* Records a change of the file that `st` describes. is_tree: 1 if the file is a directory, and
 * everything below it has changed. Returns whether the file is on a source's device. */
static int mark(struct session *s, const struct stat *st, int is_tree) {
    int is_told = monarch_lacks_room() && monarch_tell_change(st, is_tree);
    if (!is_on_source(s, st))
        return is_told;
    if (monarch_logging) {
        char inode[24];
        put_number(inode, st->st_ino, 10, 1);
        monarch_log("recorded a change of inode", inode, NULL);
    }
    monarch_mark_changed(s->clients, st->st_dev, st->st_ino);
    return 1;
}

/* --- replaced files --------------------------------------------------------------------------- */

/* A process without the library may have replaced or removed a file, and the daemon may not know
 * this yet. The path then no longer leads to the file that the catalog has for it. When a program
 * changes the file that is at the path now, the library also marks the catalog's file for this path
 * as changed. Otherwise, the copy of the catalog's file would still be served, and the program
 * would not see its own change. */

static void mark_below(struct session *s, const struct monarch_catalog *c,
                       const struct monarch_entry *directory, uint64_t count) {
    const struct monarch_entry *entries = monarch_entries(c);
    const char *prefix = monarch_pool(c, directory->path);
    uint64_t dev = s->control->source[directory->source].dev;
    for (uint64_t i = 0; i < count; i++) {
        const char *path = monarch_pool(c, entries[i].path);
        /* length of the directory's path; 0 for the source's root, which contains all files of the
         * source */
        size_t n = directory->path_len;
        if (entries[i].source == directory->source && entries[i].path_len > n &&
            (!n || path[n] == '/') && memcmp(path, prefix, n) == 0)
            monarch_mark_changed(s->clients, dev, entries[i].ino);
    }
}

static void mark_parent(struct session *s, const struct monarch_catalog *c,
                        const struct monarch_entry *e) {
    const char *path = monarch_pool(c, e->path), *slash = memrchr(path, '/', e->path_len);
    int64_t id = monarch_find(c, e->source, path, slash ? (size_t)(slash - path) : 0);
    if (id >= 0)
        monarch_mark_changed(s->clients, s->control->source[e->source].dev,
                             monarch_entries(c)[id].ino);
}

/* Marks the entry's file as changed, unless that file is still at the entry's path. Also marks the
 * directory that contains the file, because the catalog's listing of this directory is outdated. If
 * the file is itself a directory, also marks all entries below it. now: attributes of the file that
 * is at the entry's path now, or NULL if there is none. A change of that file is recorded by
 * `mark`, not here. */
static void mark_entry(struct session *s, const struct monarch_catalog *c, int64_t id,
                       const struct stat *now) {
    const struct monarch_entry *e = &monarch_entries(c)[id];
    uint64_t dev = s->control->source[e->source].dev;
    if (now && now->st_ino == e->ino && now->st_dev == dev)
        return;
    monarch_mark_changed(s->clients, dev, e->ino);
    mark_parent(s, c, e);
    if (e->kind != MONARCH_DIR)
        return;
    __atomic_fetch_add(&s->clients->renames, 1, __ATOMIC_SEQ_CST);
    mark_below(s, c, e, __atomic_load_n(&c->count, __ATOMIC_ACQUIRE));
}

/* Finds the catalog's entry for the path `name`, which the kernel has reported for an open file.
 * Returns the entry's number. Returns MONARCH_OUTSIDE if the path is in no source, and
 * MONARCH_UNKNOWN if the catalog has no entry for the path.
 *
 * The alias of a source is a second path, which leads to the source through a link. The kernel
 * reports paths without links. So if `name` equals the alias, the open file is the link itself,
 * which has no entry. If `name` is below the alias, the source is probably mounted at the alias,
 * for example in a container. The result is then the entry of the source's file. */
static int64_t find_name(struct session *s, const struct monarch_catalog **c, const char *name) {
    const char *rel;
    if (!(*c = monarch_catalog_of(s)))
        return MONARCH_UNKNOWN;
    int source = monarch_prefix(s->control, name, strlen(name), &rel);
    const struct monarch_source *root = source < 0 ? NULL : &s->control->source[source];
    if (!root || !(*rel || monarch_is_below(name, root->path, root->path_len)))
        return MONARCH_OUTSIDE;
    int64_t id = monarch_find(*c, (unsigned)source, rel, strlen(rel));
    return id < 0 ? MONARCH_UNKNOWN : id;
}

/* Opens `path` with O_PATH, and asks the kernel for the path of the opened file. Returns the number
 * of the entry at that path, or a negative number if there is none. name: a buffer of
 * MONARCH_PATH_MAX bytes. */
static int64_t find_there(struct session *s, const struct monarch_catalog **c, int dir,
                          const char *path, int follow, char *name) {
    monarch_momentary_begin();
    int fd = sys_openat(dir, path, O_PATH | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW));
    int64_t id = monarch_name_of(fd, name) ? find_name(s, c, name) : MONARCH_UNKNOWN;
    if (fd >= 0)
        sys_close(fd);
    monarch_momentary_end();
    return id;
}

__attribute__((noinline)) static int64_t find_there_apart(struct session *s,
                                                          const struct monarch_catalog **c, int dir,
                                                          const char *path, int follow) {
    char name[MONARCH_PATH_MAX];
    return find_there(s, c, dir, path, follow, name);
}

/* If the path no longer leads to the file that the catalog has for it, marks the catalog's file as
 * changed. r: the result of fstatat for the path. now: the attributes that fstatat has stored.
 * buffer: MONARCH_PATH_MAX bytes, or NULL.
 *
 * The path may lead into a source through a link outside the sources. The look-up in the catalog
 * then does not find the entry. So this function opens the path with O_PATH, and asks the kernel
 * where the path leads. */
static void mark_known(struct session *s, int r, const struct stat *now, int dir, const char *path,
                       int follow, char *buffer) {
    const struct monarch_catalog *c;
    int64_t id = MONARCH_OUTSIDE;
    int old_errno = errno; /* the look-up may change errno */
    /* After these two errors, the library must not read the path: it may be a bad pointer (EFAULT),
     * or may have no NUL within the maximum length (ENAMETOOLONG). */
    if (!s || path == buffer || r == -EFAULT || r == -ENAMETOOLONG)
        return;
    if (!monarch_leads_nowhere(dir, path))
        id = buffer ? monarch_locate_in(s, &c, dir, path, follow, buffer)
                    : monarch_locate(s, &c, dir, path, follow);
    if (id == MONARCH_OUTSIDE && r == 0 && is_on_source(s, now))
        id = buffer ? find_there(s, &c, dir, path, follow, buffer)
                    : find_there_apart(s, &c, dir, path, follow);
    errno = old_errno;
    if (id >= 0)
        mark_entry(s, c, id, r == 0 ? now : NULL);
}

/* A table of files outside all sources that a program has opened for writing by an absolute path.
 * With this table, the library need not ask the kernel for the path of such a file at each open.
 *
 * An entry is a hash of the session, its number of sources, the path, and the identity of the
 * opened file. If the same path leads to the same file again, the library assumes that the file
 * still lies outside all sources. This is wrong only if a process without the library has moved the
 * file into a source, and has made the old path lead to it. Entries are atomic. If an entry is
 * lost, the library only asks the kernel once more, so the table needs no lock. */
#define OUTSIDE_FILES 64
static uint64_t outside_files[OUTSIDE_FILES] SELDOM;
/* Atomic: how many calls of this process may have changed where paths lead, for example renames.
 * This number is part of each entry's hash, so each such call makes all entries invalid. */
static uint64_t names_changed;

static void forget_outside_files(void) { __atomic_fetch_add(&names_changed, 1, __ATOMIC_RELAXED); }

/* Returns the file's entry for the table `outside_files`. Returns 0 for a relative path, because it
 * leads to another file if the working directory changes. */
static uint64_t outside_file(const struct session *s, const char *path, const struct stat *st) {
    uint64_t file = monarch_mix(st->st_ino ^ monarch_mix(st->st_dev));
    uint64_t changed = __atomic_load_n(&names_changed, __ATOMIC_RELAXED);
    uint64_t sources = monarch_mix(s->ino ^ monarch_mix(changed << 8 | s->control->sources));
    return *path == '/' ? monarch_xxh3(path, strlen(path)) ^ file ^ sources : 0;
}

/* Call this after an open of `path` that may have changed or created the file. fd: the opened file.
 * now: the file's attributes. Asks the kernel for the path of `fd`. If the catalog has another file
 * for that path, marks the catalog's file as changed. Returns whether the kernel's path was written
 * to `name`. */
static int mark_known_opened(int fd, const struct stat *now, const char *path, char *name) {
    const struct monarch_catalog *c;
    struct session *s;
    if (!is_heard(&s) || !is_on_source(s, now))
        return 0;
    uint64_t outside = outside_file(s, path, now);
    uint64_t *known = &outside_files[outside % OUTSIDE_FILES];
    if (outside && __atomic_load_n(known, __ATOMIC_RELAXED) == outside)
        return 0;
    int old_errno = errno, is_named = monarch_name_of(fd, name);
    int64_t id = is_named ? find_name(s, &c, name) : MONARCH_UNKNOWN;
    errno = old_errno;
    if (id >= 0)
        mark_entry(s, c, id, now);
    else if (id == MONARCH_OUTSIDE && outside)
        __atomic_store_n(known, outside, __ATOMIC_RELAXED);
    return is_named;
}

/* --- changed files ---------------------------------------------------------------------------- */

int monarch_changed_file(int dir, const char *path, int follow) {
    struct session *s;
    struct stat st;
    return is_heard(&s) && sys_fstatat(dir, path, &st, follow ? 0 : AT_SYMLINK_NOFOLLOW) == 0 &&
           mark(s, &st, 0);
}

/* Stores in *st the attributes of the file that is at the path now, if there is one. If the catalog
 * has another file for this path, marks the catalog's file as changed. Returns 1 if *st is valid
 * and there is a daemon to which changes must be reported. The caller can then mark the file that
 * *st describes. */
static int mark_known_at(struct session **s, struct stat *st, int dir, const char *path, int follow,
                         char *buffer) {
    if (!is_heard(s))
        return 0;
    int r = sys_fstatat(dir, path, st, follow ? 0 : AT_SYMLINK_NOFOLLOW);
    mark_known(*s, r, st, dir, path, follow, buffer);
    return r == 0;
}

void monarch_changed_known(int dir, const char *path, int follow) {
    struct session *s;
    struct stat st;
    mark_known_at(&s, &st, dir, path, follow, NULL);
}

int monarch_changed_path(int dir, const char *path, int follow) {
    struct session *s;
    struct stat st;
    return mark_known_at(&s, &st, dir, path, follow, NULL) && mark(s, &st, 0);
}

void monarch_changed_fd(int fd) {
    struct session *s;
    struct stat st;
    if (is_heard(&s) && sys_fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        mark(s, &st, 0);
}

/* Marks every file below a directory as changed. A new name of the directory changes the files'
 * paths, and new permissions may make the files inaccessible. The function reads the whole catalog.
 * That is acceptable, because a training job does not rename directories in a loop. The daemon's
 * scan may find more files during the call. The daemon checks these files again, because the count
 * `renames` has changed. */
static void mark_below_directory(struct session *s, const struct stat *st) {
    __atomic_fetch_add(&s->clients->renames, 1, __ATOMIC_SEQ_CST);
    const struct monarch_catalog *c = monarch_catalog_of(s);
    uint64_t count = c ? __atomic_load_n(&c->count, __ATOMIC_ACQUIRE) : 0;
    for (uint64_t i = 0; i < count; i++) {
        const struct monarch_entry *e = &monarch_entries(c)[i];
        if (e->kind == MONARCH_DIR && e->ino == st->st_ino &&
            s->control->source[e->source].dev == st->st_dev)
            mark_below(s, c, e, count);
    }
}

static void mark_all(struct session *s, const struct stat *st) {
    int is_tree = S_ISDIR(st->st_mode);
    mark(s, st, is_tree);
    if (is_tree && is_on_source(s, st))
        mark_below_directory(s, st);
}

void monarch_changed_tree(int dir, const char *path) {
    struct session *s;
    struct stat st;
    if (mark_known_at(&s, &st, dir, path, 0, NULL))
        mark_all(s, &st);
}

/* Returns whether `st` describes a copy. If so, and if `real` is not NULL, writes the path of the
 * source's file to `real`, or the empty string if that file is no longer at its path. Works after
 * the end of the daemon too, because descriptors of copies outlive the daemon. */
static int describes_copy(const struct stat *st, char *real) {
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    const struct monarch_catalog *c;
    const struct monarch_entry *e =
        s && S_ISREG(st->st_mode) ? monarch_behind_copy(&s, &c, st) : NULL;
    struct stat now;
    if (!e || !real)
        return e != NULL;
    if (!monarch_source_path(s, c, e, real) ||
        sys_fstatat(AT_FDCWD, real, &now, AT_SYMLINK_NOFOLLOW) != 0 || now.st_ino != e->ino ||
        now.st_dev != s->control->source[e->source].dev)
        real[0] = 0;
    return 1;
}

int monarch_is_copy(int fd, char *real) {
    struct stat st;
    return __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE) && sys_fstat(fd, &st) == 0 &&
           describes_copy(&st, real);
}

int monarch_leads_to_copy(const char *path, char *real) {
    struct stat st;
    return __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE) &&
           sys_fstatat(AT_FDCWD, path, &st, 0) == 0 && describes_copy(&st, real);
}

/* Records a change of the file that `st` describes, and returns 0. If that file is a copy, records
 * the change for the source's file instead, writes the source file's path to `real`, and returns
 * 1. */
static int record(struct stat *st, char *real) {
    struct session *s;
    int is_due = is_heard(&s), is_copy = describes_copy(st, real);
    if (is_due && (!is_copy || sys_fstatat(AT_FDCWD, real, st, AT_SYMLINK_NOFOLLOW) == 0))
        mark_all(s, st);
    return is_copy;
}

int monarch_means_descriptor(const char *path, int flags) {
    MAYBE_NULL(path);
    return (flags & AT_EMPTY_PATH) && path && !*path;
}

/* Marks the directory that contains `path` as changed. `path` must not be empty, and is shortened
 * in place to the directory's path. */
static void mark_above(struct session *s, int dir, char *path) {
    struct stat st;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n && path[n - 1] != '/')
        n--;
    strcpy(path + n, n ? "" : ".");
    if (sys_fstatat(dir, path, &st, 0) == 0)
        mark(s, &st, 0);
}

/* Copies the path to the buffer `to`. Returns 0 if the path is empty or too long for the kernel. */
static int copy_path(char *to, const char *path) {
    size_t n = strnlen(path, MONARCH_PATH_MAX);
    if (!n || n == MONARCH_PATH_MAX)
        return 0;
    memcpy(to, path, n + 1);
    return 1;
}

void monarch_changed_names(int dir, const char *path) {
    char above[MONARCH_PATH_MAX];
    struct session *s;
    struct stat st;
    forget_outside_files();
    /* If `path` is a bad pointer, it must not be read here, because that would crash the program.
     * So the kernel checks it first (EFAULT). */
    if (is_heard(&s) && sys_fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) != -EFAULT &&
        copy_path(above, path))
        mark_above(s, dir, above);
}

void monarch_changed_names_of(int dir, char *path) {
    struct session *s;
    forget_outside_files();
    if (is_heard(&s) && *path)
        mark_above(s, dir, path);
}

/* Marks the directory that contains a created file as changed. Uses the path that the kernel
 * reports for the file, because `path` may lead through a link to another directory. is_named:
 * whether the kernel's path is in `real` already. */
static void mark_made(const struct stat *st, int fd, int dir, const char *path, char *real,
                      int is_named) {
    struct session *s;
    if (is_heard(&s) && (is_on_source(s, st) || monarch_lacks_room()) &&
        (is_named || monarch_name_of(fd, real) || copy_path(real, path)))
        mark_above(s, dir, real);
}

void monarch_made(int fd, int dir, const char *path, char *real) {
    struct stat st;
    if (sys_fstat(fd, &st) != 0)
        return;
    mark_made(&st, fd, dir, path, real, mark_known_opened(fd, &st, path, real));
}

const char *monarch_opened_for_change(int fd, int created, int dir, const char *path, char *real) {
    struct stat st;
    if (!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE) || sys_fstat(fd, &st) != 0)
        return NULL;
    int is_named = mark_known_opened(fd, &st, path, real);
    if (created)
        mark_made(&st, fd, dir, path, real, is_named);
    return record(&st, real) ? real : NULL;
}

const char *monarch_file_to_change(int dir, const char *path, int follow, char *real) {
    struct stat st;
    if (!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE) ||
        sys_fstatat(dir, path, &st, follow ? 0 : AT_SYMLINK_NOFOLLOW) != 0)
        return path;
    return record(&st, real) ? real : path;
}

const char *monarch_path_to_change(int dir, const char *path, int follow, char *real) {
    struct session *s;
    struct stat st;
    mark_known_at(&s, &st, dir, path, follow, real);
    return monarch_file_to_change(dir, path, follow, real);
}

const char *monarch_fd_to_change(int fd, char *real) {
    return monarch_opened_for_change(fd, 0, AT_FDCWD, "", real);
}
