/* Reads the attributes of a file, or of a source's file system, at the source. Stores the
 * attributes in the form in which the catalog keeps them. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "native.h"

static int to_ns(const struct statx_timestamp *t, int64_t *ns) {
    if (t->tv_sec > 9000000000LL || t->tv_sec < -9000000000LL)
        /* The time does not fit into 64-bit nanoseconds; this check allows the years 1684 to
         * 2255. */
        return 0;
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

int monarch_find_open_file(const char *path, struct monarch_open_file *out) {
    struct statx x;
    if (statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO | STATX_NLINK, &x) != 0 ||
        !S_ISREG(x.stx_mode))
        return 0;
    out->dev = makedev(x.stx_dev_major, x.stx_dev_minor);
    out->ino = x.stx_ino;
    out->links = x.stx_nlink;
    return 1;
}

/* --- the file system ---------------------------------------------------------------------------
 */

/* Returns the mount's id. In struct statx, the field stx_mnt_id follows the device, but older
 * headers do not define this field. */
static uint64_t mount_of(const struct statx *x) {
    uint64_t id;
    memcpy(&id, &x->stx_dev_minor + 1, sizeof id);
    return id;
}

void monarch_read_masks(int root, struct monarch_filesystem *f) {
    struct statx x;
    for (int i = 0; i < 2; i++) {
        unsigned mask = i ? STATX_BASIC_STATS | STATX_BTIME : STATX_BASIC_STATS;
        if (statx(root, "", AT_EMPTY_PATH, mask, &x) != 0)
            return;
        f->statx_mask[i] = x.stx_mask;
    }
    f->attributes_mask = x.stx_attributes_mask;
    f->mount = mount_of(&x);
}

void monarch_read_filesystem(int root, struct monarch_filesystem *f) {
    struct statfs s;
    monarch_read_masks(root, f);
    if (fstatfs(root, &s) != 0)
        return;
    f->type = s.f_type;
    f->bsize = s.f_bsize;
    f->frsize = s.f_frsize;
    f->namelen = s.f_namelen;
    f->flags = s.f_flags;
    f->blocks = s.f_blocks;
    f->bfree = s.f_bfree;
    f->bavail = s.f_bavail;
    f->files = s.f_files;
    f->ffree = s.f_ffree;
    memcpy(f->fsid, &s.f_fsid, sizeof f->fsid);
}
