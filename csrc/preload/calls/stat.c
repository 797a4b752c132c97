/* Answers stat and similar calls with the attributes of source files, never with those of copies.
 *
 * For a path, the attributes come from the catalog, as long as the catalog may answer. For a
 * descriptor, they come from the kernel. If these are a copy's attributes, the catalog's attributes
 * of the source file replace them. */
#include <string.h>
#include <sys/sysmacros.h>

#include "preload/lookup/metadata.h"
#include "preload/process/calls.h"
#include "preload/session/copies.h"
#include "preload/session/roots.h"
#include "shared/sys.h"

static struct timespec time_of(int64_t ns) {
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    if (t.tv_nsec < 0) {
        t.tv_sec--;
        t.tv_nsec += 1000000000;
    }
    return t;
}

static void fill(const struct session *s, const struct monarch_entry *e, struct stat *st) {
    memset(st, 0, sizeof *st);
    st->st_dev = s->control->source[e->source].dev;
    st->st_ino = e->ino;
    st->st_mode = e->mode;
    st->st_nlink = e->nlink;
    st->st_uid = e->uid;
    st->st_gid = e->gid;
    st->st_size = (off_t)e->size;
    st->st_blksize = e->blksize * 512;
    st->st_blocks = (blkcnt_t)e->blocks;
    st->st_atim = time_of(e->atime_ns);
    st->st_mtim = time_of(e->mtime_ns);
    st->st_ctim = time_of(e->ctime_ns);
}

/* Returns 1 if the catalog has answered, or 0 if the kernel must be asked. */
static int answer_path(int dir, const char *path, struct stat *st, int follow) {
    struct monarch_known k;
    struct stat found;
    MAYBE_NULL(st);
    if (!st) /* the kernel reports the error */
        return 0;
    if (!monarch_know(dir, path, follow, &k) || !monarch_can_tell(&k))
        return 0;
    fill(k.session, k.entry, &found);
    if (!monarch_is_same_version(&k))
        return 0;
    *st = found;
    return 1;
}

/* If `st` describes a copy, returns the entry of the copied file, and sets *s and *c to the entry's
 * session and catalog. Otherwise returns NULL. Works even while Monarch is switched off, because
 * descriptors of copies stay open. */
static const struct monarch_entry *behind(struct session **s, const struct monarch_catalog **c,
                                          const struct stat *st) {
    *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    return *s && S_ISREG(st->st_mode) ? monarch_behind_copy(s, c, st) : NULL;
}

/* Replaces mode, owner, link count and ctime in *st by the current values of the source's file.
 * There are two exceptions. First, the path leads to another file by now, or the file's size has
 * changed. *st then stays unchanged: it describes the version that the program opened. Second, only
 * the mtime has changed. The ctime in *st then stays unchanged, because a new ctime would not match
 * the old mtime.
 *
 * This is a separate function, because its buffer takes much of the stack, and few calls need
 * it. */
__attribute__((noinline)) static void refresh(const struct session *s,
                                              const struct monarch_catalog *c,
                                              const struct monarch_entry *e, struct stat *st) {
    char path[MONARCH_PATH_MAX];
    struct stat now;
    if (monarch_source_path(s, c, e, path) &&
        sys_fstatat(AT_FDCWD, path, &now, AT_SYMLINK_NOFOLLOW) == 0 && now.st_ino == e->ino &&
        now.st_dev == st->st_dev && now.st_size == st->st_size) {
        st->st_mode = now.st_mode;
        st->st_uid = now.st_uid;
        st->st_gid = now.st_gid;
        st->st_nlink = now.st_nlink;
        if (now.st_mtim.tv_sec == st->st_mtim.tv_sec && now.st_mtim.tv_nsec == st->st_mtim.tv_nsec)
            st->st_ctim = now.st_ctim;
    }
}

/* If `st` describes a copy, replaces the attributes in `st` by those of the source's file, as the
 * program opened it. Returns the file's entry, or NULL if `st` describes no copy. */
static const struct monarch_entry *correct(struct stat *st) {
    struct session *s;
    const struct monarch_catalog *c;
    const struct monarch_entry *e = behind(&s, &c, st);
    if (!e)
        return NULL;
    fill(s, e, st);
    /* The catalog's attributes may be outdated in two cases: the file was recorded as changed; or
     * the daemon has ended, so that changes are no longer recorded. */
    if (s != __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE) || !monarch_is_serving(s) ||
        monarch_is_changed(s->clients, st->st_dev, e->ino))
        refresh(s, c, e, st);
    return e;
}

static int may_be_copy(const struct stat *st) {
    const struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    return s && (st->st_mode & 07777) == 0400 && S_ISREG(st->st_mode) &&
           monarch_tier_on(s, st->st_dev, 0) >= 0;
}

/* glibc before 2.33 does not export stat, lstat and fstatat. With such a glibc, this function
 * replaces them: it makes the system call directly. */
static int kernel_stat(int dir, const char *path, struct stat *st, int flags) {
    return (int)monarch_result(sys_fstatat(dir, path, st, flags));
}

PUBLIC int stat(const char *path, struct stat *st) {
    if (answer_path(AT_FDCWD, path, st, 1))
        return 0;
    int r = REAL(stat) ? REAL(stat)(path, st) : kernel_stat(AT_FDCWD, path, st, 0);
    if (r == 0 && !correct(st)) /* `path` may be /proc/self/fd/N and lead to a copy */
        monarch_learn_stat(path, st);
    return r;
}

PUBLIC int lstat(const char *path, struct stat *st) {
    if (answer_path(AT_FDCWD, path, st, 0))
        return 0;
    int r =
        REAL(lstat) ? REAL(lstat)(path, st) : kernel_stat(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
    if (r == 0)
        monarch_learn_stat(path, st);
    return r;
}

PUBLIC int fstat(int fd, struct stat *st) {
    int r = REAL(fstat) ? REAL(fstat)(fd, st) : (int)monarch_result(sys_fstat(fd, st));
    /* If the copy was removed right after fstat, *st still has the old link count. But `correct`
     * recognizes a removed copy by the link count 0. So fstat is called again. */
    if (r == 0 && !correct(st) && may_be_copy(st) && sys_fstat(fd, st) == 0)
        correct(st);
    return r;
}

PUBLIC int fstatat(int dir, const char *path, struct stat *st, int flags) {
    if (!(flags & ~(AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH)) &&
        answer_path(dir, path, st, !(flags & AT_SYMLINK_NOFOLLOW)))
        return 0;
    int r = REAL(fstatat) ? REAL(fstatat)(dir, path, st, flags) : kernel_stat(dir, path, st, flags);
    MAYBE_NULL(path); /* newer kernels accept a NULL path with AT_EMPTY_PATH */
    if (r == 0 && !correct(st) && path && (dir == AT_FDCWD || *path == '/'))
        monarch_learn_stat(path, st);
    return r;
}

/* Programs that were built with glibc before 2.33 call these versioned functions. `version` names a
 * layout of `struct stat`. The library answers only for the layout with which it was compiled. */
#define CURRENT(version) ((version) == 1 || (version) == 0)

PUBLIC int __xstat(int version, const char *path, struct stat *st) {
    return CURRENT(version) || !REAL(__xstat) ? stat(path, st) : REAL(__xstat)(version, path, st);
}

PUBLIC int __lxstat(int version, const char *path, struct stat *st) {
    return CURRENT(version) || !REAL(__lxstat) ? lstat(path, st)
                                               : REAL(__lxstat)(version, path, st);
}

PUBLIC int __fxstat(int version, int fd, struct stat *st) {
    return CURRENT(version) || !REAL(__fxstat) ? fstat(fd, st) : REAL(__fxstat)(version, fd, st);
}

PUBLIC int __fxstatat(int version, int dir, const char *path, struct stat *st, int flags) {
    return CURRENT(version) || !REAL(__fxstatat) ? fstatat(dir, path, st, flags)
                                                 : REAL(__fxstatat)(version, dir, path, st, flags);
}

static struct statx_timestamp statx_time_of(struct timespec t) {
    return (struct statx_timestamp){.tv_sec = t.tv_sec, .tv_nsec = (uint32_t)t.tv_nsec};
}

/* The bits of the fields of struct statx that the catalog can provide. */
#define KNOWN (STATX_BASIC_STATS | STATX_BTIME)
#ifndef STATX_MNT_ID
#define STATX_MNT_ID 0x1000U /* since Linux 5.8 */
#endif

static int real_statx(int dir, const char *path, int flags, unsigned mask, struct statx *x) {
    if (REAL(statx))
        return REAL(statx)(dir, path, flags, mask, x);
    return (int)monarch_result(sys6(SYS_statx, dir, (long)path, flags, (long)mask, (long)x, 0));
}

/* Fills *x from `st`, which came from the catalog. The fields that are the same for all files of a
 * source come from the source's field `filesystem`. */
static void fill_statx(const struct session *s, const struct monarch_entry *e,
                       const struct stat *st, unsigned mask, struct statx *x) {
    const struct monarch_filesystem *f = &s->control->source[e->source].filesystem;
    memset(x, 0, sizeof *x);
    x->stx_mask = f->statx_mask[(mask & STATX_BTIME) != 0];
    x->stx_attributes_mask = f->attributes_mask;
    x->stx_dev_major = major(st->st_dev);
    x->stx_dev_minor = minor(st->st_dev);
    x->stx_ino = st->st_ino;
    x->stx_mode = (uint16_t)st->st_mode;
    x->stx_nlink = (uint32_t)st->st_nlink;
    x->stx_uid = st->st_uid;
    x->stx_gid = st->st_gid;
    x->stx_size = (uint64_t)st->st_size;
    x->stx_blksize = (uint32_t)st->st_blksize;
    x->stx_blocks = (uint64_t)st->st_blocks;
    x->stx_atime = statx_time_of(st->st_atim);
    x->stx_mtime = statx_time_of(st->st_mtim);
    x->stx_ctime = statx_time_of(st->st_ctim);
    if (x->stx_mask & STATX_BTIME)
        x->stx_btime = statx_time_of(time_of(e->btime_ns));
    /* The field after stx_dev_minor is stx_mnt_id. Older headers do not define it. */
    if (x->stx_mask & STATX_MNT_ID)
        memcpy(&x->stx_dev_minor + 1, &f->mount, sizeof f->mount);
}

static int can_fill_statx(struct session *s, const struct monarch_entry *e, unsigned mask) {
    return !(mask & ~KNOWN) && !(e->flags & MONARCH_ATTRIBUTES) &&
           s->control->source[e->source].filesystem.statx_mask[0] && monarch_mounts_are_ours(s);
}

/* Stores in *mtime the mtime of a file that may be a copy, because some copies are recognized by a
 * stamp in their mtime (monarch_stamp). If the program's call has not requested the mtime, newer
 * kernels do not store it in *x. In this case, calls statx once more. */
__attribute__((noinline)) static void time_of_copy(int dir, const char *path, int flags,
                                                   const struct statx *x, struct timespec *mtime) {
    struct statx now;
    if (x->stx_mask & STATX_MTIME)
        *mtime = (struct timespec){x->stx_mtime.tv_sec, x->stx_mtime.tv_nsec};
    else if (monarch_has_mode_of_copy(x->stx_mode) &&
             sys6(SYS_statx, dir, (long)path, flags, STATX_MTIME, (long)&now, 0) == 0 &&
             now.stx_ino == x->stx_ino)
        *mtime = (struct timespec){now.stx_mtime.tv_sec, now.stx_mtime.tv_nsec};
}

/* Fills *x with the kernel's answer to statx for the source's file. Returns 0 if the file is no
 * longer at its path. This is a separate function, because its buffer takes much of the stack, and
 * few calls need it. */
__attribute__((noinline)) static int ask_source(const struct session *s,
                                                const struct monarch_catalog *c,
                                                const struct monarch_entry *e, unsigned mask,
                                                struct statx *x) {
    char path[MONARCH_PATH_MAX];
    struct statx now;
    if (!monarch_source_path(s, c, e, path) ||
        sys6(SYS_statx, AT_FDCWD, (long)path, AT_SYMLINK_NOFOLLOW, (long)mask, (long)&now, 0) !=
            0 ||
        now.stx_ino != e->ino)
        return 0;
    *x = now;
    return 1;
}

static void correct_statx(int dir, const char *given, int flags, struct statx *x, unsigned mask) {
    struct session *s;
    const struct monarch_catalog *c;
    struct stat st = {.st_dev = makedev(x->stx_dev_major, x->stx_dev_minor), .st_ino = x->stx_ino};
    st.st_mode = x->stx_mode;
    st.st_nlink = x->stx_nlink;
    st.st_size = (off_t)x->stx_size;
    time_of_copy(dir, given, flags, x, &st.st_mtim);
    const struct monarch_entry *e = behind(&s, &c, &st);
    if (!e)
        return;
    correct(&st);
    if (can_fill_statx(s, e, mask) || !ask_source(s, c, e, mask, x))
        fill_statx(s, e, &st, mask, x);
}

static int answer_statx(int dir, const char *path, int flags, unsigned mask, struct statx *x) {
    struct monarch_known k;
    struct stat st;
    MAYBE_NULL(x);
    if (!x || mask & ~KNOWN ||
        flags & ~(AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH | AT_STATX_DONT_SYNC))
        return 0;
    if (!monarch_know(dir, path, !(flags & AT_SYMLINK_NOFOLLOW), &k) || !monarch_can_tell(&k))
        return 0;
    fill(k.session, k.entry, &st);
    if (!can_fill_statx(k.session, k.entry, mask) || !monarch_is_same_version(&k))
        return 0;
    fill_statx(k.session, k.entry, &st, mask, x);
    return 1;
}

PUBLIC int statx(int dir, const char *path, int flags, unsigned mask, struct statx *x) {
    if (answer_statx(dir, path, flags, mask, x))
        return 0;
    int r = real_statx(dir, path, flags, mask, x);
    if (r == 0)
        correct_statx(dir, path, flags, x, mask);
    return r;
}

TWIN(stat64, stat)
TWIN(lstat64, lstat)
TWIN(fstat64, fstat)
TWIN(fstatat64, fstatat)
TWIN(__xstat64, __xstat)
TWIN(__lxstat64, __lxstat)
TWIN(__fxstat64, __fxstat)
TWIN(__fxstatat64, __fxstatat)
