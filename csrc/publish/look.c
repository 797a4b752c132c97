/* Reads the attributes of one file at its source, in the form in which the catalog keeps them. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "native.h"

static int to_ns(const struct statx_timestamp *t, int64_t *ns) {
    if (t->tv_sec > 9000000000LL || t->tv_sec < -9000000000LL)
        return 0; /* beyond the range of 64-bit nanoseconds (1684 to 2255) */
    *ns = t->tv_sec * 1000000000LL + t->tv_nsec;
    return 1;
}

static void from_statx(struct monarch_entry *e, const struct statx *x) {
    e->ino = x->stx_ino;
    e->size = x->stx_size;
    e->blocks = x->stx_blocks;
    e->mode = x->stx_mode;
    e->uid = x->stx_uid;
    e->gid = x->stx_gid;
    e->nlink = x->stx_nlink;
    e->blksize = (uint16_t)(x->stx_blksize / 512);
    e->flags = x->stx_attributes & x->stx_attributes_mask ? MONARCH_ATTRIBUTES : 0;
    if (!to_ns(&x->stx_mtime, &e->mtime_ns) || !to_ns(&x->stx_ctime, &e->ctime_ns) ||
        !to_ns(&x->stx_atime, &e->atime_ns) ||
        ((x->stx_mask & STATX_BTIME) && !to_ns(&x->stx_btime, &e->btime_ns)) ||
        e->blksize * 512U != x->stx_blksize)
        e->word = monarch_word(MONARCH_BYPASS, MONARCH_UNSUPPORTED, 0, 0);
}

int monarch_stat_entry(int root, unsigned source, const char *path, struct monarch_entry *e,
                       char *target, uint64_t target_bytes) {
    return monarch_statx_entry(root, source, path, 0, e, target, target_bytes);
}

int monarch_statx_entry(int root, unsigned source, const char *path, int flags,
                        struct monarch_entry *e, char *target, uint64_t target_bytes) {
    struct statx x;
    memset(e, 0, sizeof *e);
    e->place = MONARCH_NO_PLACE;
    if (statx(root, path, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH | flags,
              STATX_BASIC_STATS | STATX_BTIME, &x) != 0)
        return -errno;
    e->source = (uint8_t)source;
    from_statx(e, &x);
    if (S_ISREG(x.stx_mode)) {
        e->kind = MONARCH_FILE;
    } else if (S_ISDIR(x.stx_mode)) {
        e->kind = MONARCH_DIR;
    } else if (S_ISLNK(x.stx_mode)) {
        ssize_t n = readlinkat(root, path, target, target_bytes);
        if (n < 0 || (uint64_t)n >= target_bytes)
            return n < 0 ? -errno : -ENAMETOOLONG;
        target[n] = 0;
        e->kind = MONARCH_LINK;
    } else {
        e->kind = MONARCH_OTHER;
    }
    return 0;
}
