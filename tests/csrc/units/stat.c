#include "preload/lookup/metadata.h"

static int learnt; /* how many paths the library has learned from calls */
static void learn(const char *path, const struct stat *st) {
    learnt++;
    monarch_learn_stat(path, st);
}
#define monarch_learn_stat(path, st) learn(path, st)
#include "preload/calls/stat.c"

#include "made.h"

#ifdef __x86_64__
#define VERSION 1
#else
#define VERSION 0
#endif

/* Makes one of the calls that report a file's attributes. Writes all attributes to `out`, times in
 * ns. Returns -errno on failure. */
EXPORT int stat_of(int call, int dir, const char *path, int flags, int64_t *out) {
    struct stat st;
    int r = call == 0   ? stat(path, &st)
            : call == 1 ? lstat(path, &st)
            : call == 2 ? fstat(dir, &st)
            : call == 3 ? fstatat(dir, path, &st, flags)
            : call == 4 ? __xstat(VERSION, path, &st)
            : call == 5 ? __lxstat(VERSION, path, &st)
            : call == 6 ? __fxstat(VERSION, dir, &st)
                        : __fxstatat(VERSION, dir, path, &st, flags);
    if (r != 0)
        return -errno;
    const int64_t all[] = {(int64_t)st.st_dev,
                           (int64_t)st.st_ino,
                           st.st_mode,
                           (int64_t)st.st_nlink,
                           st.st_uid,
                           st.st_gid,
                           st.st_size,
                           st.st_blksize,
                           st.st_blocks,
                           monarch_time_ns(st.st_atim.tv_sec, st.st_atim.tv_nsec),
                           monarch_time_ns(st.st_mtim.tv_sec, st.st_mtim.tv_nsec),
                           monarch_time_ns(st.st_ctim.tv_sec, st.st_ctim.tv_nsec)};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        out[i] = all[i];
    return 0;
}

EXPORT int stat_learnt(void) {
    int n = learnt;
    learnt = 0;
    return n;
}
/* Calls __xstat, __lxstat, __fxstat or __fxstatat. A program that was built before glibc 2.33 makes
 * these calls instead of stat, lstat, fstat and fstatat. version: the layout of struct stat. If
 * `is_lacking` is 1, libc does not have these calls. Returns -errno on failure, otherwise the
 * file's size. */
EXPORT int64_t stat_of_version(int call, int version, int fd, const char *path, int is_lacking) {
    struct stat st = {.st_size = -9999};
    void *none = is_lacking ? (void *)1 : NULL;
    monarch_real.__xstat = monarch_real.__lxstat = none;
    monarch_real.__fxstat = monarch_real.__fxstatat = none;
    int r = call == 0   ? __xstat(version, path, &st)
            : call == 1 ? __lxstat(version, path, &st)
            : call == 2 ? __fxstat(version, fd, &st)
                        : __fxstatat(version, AT_FDCWD, path, &st, 0);
    monarch_real.__xstat = monarch_real.__lxstat = NULL;
    monarch_real.__fxstat = monarch_real.__fxstatat = NULL;
    return r == 0 ? st.st_size : -errno;
}

static const char *removed;
static int stat_and_remove(int fd, struct stat *st) {
    long r = sys_fstat(fd, st);
    sys6(SYS_unlinkat, AT_FDCWD, (long)removed, 0, 0, 0, 0);
    return (int)monarch_result(r);
}
/* Calls fstat on a descriptor of the copy. The daemon removes the copy right after the kernel has
 * answered. Returns the inode that fstat reports, or 0 if fstat fails. */
EXPORT uint64_t stat_while_removed(int fd, const char *copy) {
    struct stat st = {.st_ino = 0};
    removed = copy;
    monarch_real.fstat = (void *)stat_and_remove;
    int r = fstat(fd, &st);
    monarch_real.fstat = NULL;
    return r == 0 ? st.st_ino : 0;
}

/* Calls statx. If `is_lacking` is 1, makes it seem that libc has no statx, as is the case with an
 * older libc. Returns 0 or -errno. */
EXPORT int statx_of(int dir, const char *path, int flags, unsigned mask, int is_lacking,
                    void *out) {
    monarch_real.statx = is_lacking ? (void *)1 : NULL;
    int r = statx(dir, path, flags, mask, out);
    monarch_real.statx = NULL;
    return r == 0 ? 0 : -errno;
}
/* Makes the system call itself. */
EXPORT int statx_of_kernel(int dir, const char *path, int flags, unsigned mask, void *out) {
    return (int)sys6(SYS_statx, dir, (long)path, flags, (long)mask, (long)out, 0);
}
EXPORT uint64_t statx_size(void) { return sizeof(struct statx); }
/* Makes the library forget whether this process's mounts are those of the daemon. */
EXPORT void statx_forget_mounts(struct session *s) { s->mounts = 0; }
