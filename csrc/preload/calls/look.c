/* Answers access, readlink, realpath and similar calls from the catalog. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "preload/lookup/metadata.h"
#include "preload/process/calls.h"
#include "preload/session/copies.h"
#include "shared/sys.h"

/* Returns whether the access is certainly allowed. The mode bits of the file do not suffice,
 * because the kernel applies further rules. But the access is allowed if the kernel has already
 * allowed it to another process of this user, such as the daemon. So a file with a copy may be
 * read, because a process has read it to make the copy. A directory may be read if the catalog has
 * its listing, and may be searched if this listing contains names. */
static int is_allowed(const struct monarch_known *k, int mode) {
    const struct monarch_entry *e = k->entry;
    uint64_t word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
    if (mode == F_OK)
        return 1;
    if (e->kind == MONARCH_FILE)
        return mode == R_OK && MONARCH_WORD_STATE(word) == MONARCH_PRESENT;
    uint64_t listing = e->kind == MONARCH_DIR ? monarch_listing_of(k) : 0;
    if (!listing || mode & ~(R_OK | X_OK))
        return 0;
    return !(mode & X_OK) || monarch_listing_length(listing) > 0;
}

/* Returns 1 if access is allowed, or 0 if the kernel must be asked. effective: 1 to check the
 * effective user and group instead of the real ones. */
static int answer(int dir, const char *path, int mode, int follow, int effective) {
    struct monarch_known k;
    if (mode & ~(R_OK | W_OK | X_OK))
        return 0;
    if (!monarch_know(dir, path, follow, &k))
        return 0;
    if (!effective && sys6(SYS_getuid, 0, 0, 0, 0, 0, 0) != (long)k.session->control->owner)
        return 0;
    return monarch_can_tell(&k) && is_allowed(&k, mode);
}

PUBLIC int access(const char *path, int mode) {
    return answer(AT_FDCWD, path, mode, 1, 0) ? 0 : REAL(access)(path, mode);
}

PUBLIC int eaccess(const char *path, int mode) {
    return answer(AT_FDCWD, path, mode, 1, 1) ? 0 : REAL(eaccess)(path, mode);
}

PUBLIC int euidaccess(const char *path, int mode) {
    return answer(AT_FDCWD, path, mode, 1, 1) ? 0 : REAL(euidaccess)(path, mode);
}

PUBLIC int faccessat(int dir, const char *path, int mode, int flags) {
    if (!(flags & ~(AT_EACCESS | AT_SYMLINK_NOFOLLOW)) &&
        answer(dir, path, mode, !(flags & AT_SYMLINK_NOFOLLOW), flags & AT_EACCESS))
        return 0;
    return REAL(faccessat)(dir, path, mode, flags);
}

/* Reads a link. Returns the number of bytes written to `target`, -1 with errno set, or -2 if the
 * kernel must be asked. */
static ssize_t target_of(int dir, const char *path, char *target, size_t n) {
    struct monarch_known k;
    MAYBE_NULL(target);
    if (!n || !target)
        return -2;
    if (!monarch_know(dir, path, 0, &k) || !monarch_can_tell(&k))
        return -2;
    if (k.entry->kind != MONARCH_LINK) {
        errno = EINVAL;
        return -1;
    }
    const char *text = monarch_pool(k.catalog, k.entry->copy_ino);
    size_t length = strlen(text);
    memcpy(target, text, length < n ? length : n);
    return (ssize_t)(length < n ? length : n);
}

PUBLIC ssize_t readlink(const char *path, char *target, size_t n) {
    ssize_t r = target_of(AT_FDCWD, path, target, n);
    return r == -2 ? REAL(readlink)(path, target, n) : r;
}

PUBLIC ssize_t readlinkat(int dir, const char *path, char *target, size_t n) {
    ssize_t r = target_of(dir, path, target, n);
    return r == -2 ? REAL(readlinkat)(dir, path, target, n) : r;
}

/* If a program requests more bytes (`n`) than its buffer has room for (`size`), libc's fortified
 * function aborts the program. So such a call goes to libc. */
ssize_t __readlink_chk(const char *path, char *target, size_t n, size_t size);
ssize_t __readlinkat_chk(int dir, const char *path, char *target, size_t n, size_t size);

PUBLIC ssize_t __readlink_chk(const char *path, char *target, size_t n, size_t size) {
    return n > size ? REAL(__readlink_chk)(path, target, n, size) : readlink(path, target, n);
}

PUBLIC ssize_t __readlinkat_chk(int dir, const char *path, char *target, size_t n, size_t size) {
    return n > size ? REAL(__readlinkat_chk)(dir, path, target, n, size)
                    : readlinkat(dir, path, target, n);
}

/* --- where a path leads in the end ------------------------------------------------------------ */

/* Writes the full path of the entry's file to *resolved, or to new memory if *resolved is NULL.
 * Returns 0 if the path is too long. The path contains no links: the source's own path is stored
 * without links, and the daemon's scan follows none. This is a separate function, because its
 * buffer takes much of the stack, and few calls need it. */
__attribute__((noinline)) static int tell_path(const struct monarch_known *k, char **resolved) {
    char real[MONARCH_PATH_MAX];
    if (!monarch_source_path(k->session, k->catalog, k->entry, real))
        return 0;
    /* for the root directory of a source, `real` ends with a slash, which is removed here */
    size_t n = strlen(real) - !k->entry->path_len;
    real[n] = 0;
    if (!*resolved)
        *resolved = strdup(real);
    else
        memcpy(*resolved, real, n + 1);
    return 1;
}

/* Answers realpath from the catalog, but only for a path that exists. For any other path, returns
 * 0. The caller then calls libc's realpath, which also stores in `resolved` the path at which the
 * error occurred. */
static int answer_realpath(const char *path, char **resolved) {
    struct monarch_known k;
    if (!monarch_know(AT_FDCWD, path, 1, &k))
        return 0;
    int can_tell = k.entry->kind == MONARCH_DIR ? monarch_look_and_list(&k, AT_FDCWD, path) != 0
                                                : monarch_can_tell(&k);
    return can_tell && tell_path(&k, resolved);
}

PUBLIC char *realpath(const char *path, char *resolved) {
    return answer_realpath(path, &resolved) ? resolved : REAL(realpath)(path, resolved);
}

PUBLIC char *canonicalize_file_name(const char *path) { return realpath(path, NULL); }

char *__realpath_chk(const char *path, char *resolved, size_t size);

PUBLIC char *__realpath_chk(const char *path, char *resolved, size_t size) {
    return size < PATH_MAX ? REAL(__realpath_chk)(path, resolved, size) : realpath(path, resolved);
}
