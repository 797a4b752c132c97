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
