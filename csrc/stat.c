/* The logical file's attributes: by path from the catalog while its copy is served, by descriptor
 * from the kernel and, when that descriptor is a copy's, from the catalog over it. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "calls.h"
#include "serve.h"
#include "sys.h"

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
    st->st_blksize = e->blksize;
    st->st_blocks = (blkcnt_t)e->blocks;
    st->st_atim = time_of(e->atime_ns);
    st->st_mtim = time_of(e->mtime_ns);
    st->st_ctim = time_of(e->ctime_ns);
}

/* A file whose copy is served is one version in all its calls; any other is the source's. */
static const struct monarch_entry *served(struct session *s, int dir, const char *path,
                                          int follow) {
    MAYBE_NULL(path);
    const struct monarch_catalog *c = s && path ? monarch_catalog_of(s) : NULL;
    /* Another user may not see what ours may. */
    if (c && s->control->owner != (uint32_t)sys6(SYS_geteuid, 0, 0, 0, 0, 0, 0))
        return NULL;
    int64_t id = c ? monarch_locate(s, c, dir, path, follow, 0) : -1;
    if (id < 0)
        return NULL;
    const struct monarch_entry *e = &monarch_entries(c)[id];
    uint64_t word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
    monarch_tick(s);
    return e->kind == MONARCH_FILE && MONARCH_WORD_STATE(word) == MONARCH_PRESENT &&
                   !monarch_is_off(s) &&
                   !monarch_is_changed(s->clients, s->control->source[e->source].dev, e->ino)
               ? e
               : NULL;
}

static int answer_path(int dir, const char *path, struct stat *st, int follow) {
    struct session *s = session_for_reading();
    MAYBE_NULL(st);
    if (!st)
        return 0; /* the kernel says what is wrong */
    const struct monarch_entry *e = served(s, dir, path, follow);
    if (e)
        fill(s, e, st);
    return e != NULL;
}

/* Descriptors of copies stay what they are while everything is switched off. */
static const struct monarch_entry *behind(struct session **s, const struct monarch_catalog **c,
                                          const struct stat *st) {
    *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    return *s && S_ISREG(st->st_mode) ? monarch_behind_copy(s, c, st) : NULL;
}

/* Of a file that was changed and has the content still that was opened: owner, mode and links are
 * those of now. Apart, because few calls need the room for a path. */
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
        st->st_ctim = now.st_ctim;
    }
}

/* What a descriptor of a copy says of its file: the version that was opened. */
static const struct monarch_entry *correct(struct stat *st) {
    struct session *s;
    const struct monarch_catalog *c;
    const struct monarch_entry *e = behind(&s, &c, st);
    if (!e)
        return NULL;
    fill(s, e, st);
    if (monarch_is_changed(s->clients, st->st_dev, e->ino))
        refresh(s, c, e, st);
    return e;
}

static int may_be_copy(const struct stat *st) {
    const struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    return s && (st->st_mode & 07777) == 0400 && S_ISREG(st->st_mode) &&
           monarch_tier_on(s, st->st_dev, 0) >= 0;
}

static int result(int r) {
    if (r >= 0)
        return 0;
    errno = -r;
    return -1;
}

/* glibc before 2.33 has no such symbols behind us: the system call is what they are. */
static int kernel_stat(int dir, const char *path, struct stat *st, int flags) {
    return result(sys_fstatat(dir, path, st, flags));
}

PUBLIC int stat(const char *path, struct stat *st) {
    if (answer_path(AT_FDCWD, path, st, 1))
        return 0;
    int r = REAL(stat) ? REAL(stat)(path, st) : kernel_stat(AT_FDCWD, path, st, 0);
    if (r == 0)
        correct(st); /* /proc/self/fd/N of a copy */
    return r;
}

PUBLIC int lstat(const char *path, struct stat *st) {
    if (answer_path(AT_FDCWD, path, st, 0))
        return 0;
    return REAL(lstat) ? REAL(lstat)(path, st)
                       : kernel_stat(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

PUBLIC int fstat(int fd, struct stat *st) {
    int r = REAL(fstat) ? REAL(fstat)(fd, st) : result(sys_fstat(fd, st));
    /* A copy that is removed between the kernel's answer and our look has no link any more, and is
     * then known by that. */
    if (r == 0 && !correct(st) && may_be_copy(st) && sys_fstat(fd, st) == 0)
        correct(st);
    return r;
}

PUBLIC int fstatat(int dir, const char *path, struct stat *st, int flags) {
    if (answer_path(dir, path, st, !(flags & AT_SYMLINK_NOFOLLOW)))
        return 0;
    int r = REAL(fstatat) ? REAL(fstatat)(dir, path, st, flags) : kernel_stat(dir, path, st, flags);
    if (r == 0)
        correct(st);
    return r;
}

/* The versioned names that programs built before glibc 2.33 call. Only the version whose struct
 * is this one is ours to answer. */
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

static void correct_statx(struct statx *x) {
    struct stat st = {.st_dev = makedev(x->stx_dev_major, x->stx_dev_minor), .st_ino = x->stx_ino};
    st.st_mode = x->stx_mode;
    st.st_nlink = x->stx_nlink;
    st.st_size = (off_t)x->stx_size;
    const struct monarch_entry *e = correct(&st);
    if (!e)
        return;
    x->stx_dev_major = major(st.st_dev);
    x->stx_dev_minor = minor(st.st_dev);
    x->stx_ino = st.st_ino;
    x->stx_mode = (uint16_t)st.st_mode;
    x->stx_nlink = (uint32_t)st.st_nlink;
    x->stx_uid = st.st_uid;
    x->stx_gid = st.st_gid;
    x->stx_size = (uint64_t)st.st_size;
    x->stx_blksize = (uint32_t)st.st_blksize;
    x->stx_blocks = (uint64_t)st.st_blocks;
    x->stx_atime = statx_time_of(st.st_atim);
    x->stx_mtime = statx_time_of(st.st_mtim);
    x->stx_ctime = statx_time_of(st.st_ctim);
    x->stx_btime = statx_time_of(time_of(e->btime_ns));
    if (!e->btime_ns)
        x->stx_mask &= ~STATX_BTIME;
}

static int real_statx(int dir, const char *path, int flags, unsigned mask, struct statx *x) {
    if (REAL(statx))
        return REAL(statx)(dir, path, flags, mask, x);
    return result((int)sys6(SYS_statx, dir, (long)path, flags, (long)mask, (long)x, 0));
}

/* By path, the mount's number and attribute masks come from the copy's own statx, so that a kernel
 * that knows more fields than we do fills them; what the file is comes from the catalog. */
static int statx_of_copy(const struct session *s, const struct monarch_entry *e, int flags,
                         unsigned mask, struct statx *x) {
    char copy[MONARCH_COPY_PATH];
    uint64_t word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
    const struct monarch_tier *tier = &s->control->tier[MONARCH_WORD_TIER(word)];
    monarch_copy_path(tier, MONARCH_WORD_COPY(word), copy);
    if (sys6(SYS_statx, AT_FDCWD, (long)copy, flags, (long)mask, (long)x, 0) != 0)
        return 0;
    correct_statx(x);
    return x->stx_ino == e->ino;
}

static int names_a_path(const char *path) {
    MAYBE_NULL(path);
    return path && *path;
}

PUBLIC int statx(int dir, const char *path, int flags, unsigned mask, struct statx *x) {
    /* More than the basic fields and birth time is the source's to say. */
    const unsigned known = STATX_BASIC_STATS | STATX_BTIME;
    if (!(mask & ~known) && !(flags & AT_STATX_FORCE_SYNC) && names_a_path(path)) {
        struct session *s = session_for_reading();
        const struct monarch_entry *e = served(s, dir, path, !(flags & AT_SYMLINK_NOFOLLOW));
        if (e && statx_of_copy(s, e, flags & ~AT_SYMLINK_NOFOLLOW, mask, x))
            return 0;
    }
    int r = real_statx(dir, path, flags, mask, x);
    if (r == 0)
        correct_statx(x);
    return r;
}

TWINS_OF_STAT(TWIN)
