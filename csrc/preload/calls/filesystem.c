/* Makes statfs, statvfs and name_to_handle_at answer for a copy as if it were on the source's file
 * system.
 *
 * For a path in a source, the catalog answers statfs and statvfs in place of the source, as long as
 * the catalog's figures are recent enough. */
#include <errno.h>
#include <string.h>

#include "preload/changes/record.h"
#include "preload/lookup/metadata.h"
#include "preload/process/calls.h"
#include "preload/promotion/backing.h"
#include "preload/session/copies.h"
#include "preload/session/roots.h"
#include "shared/sys.h"

static void fill(const struct monarch_filesystem *f, struct statfs *s) {
    memset(s, 0, sizeof *s);
    s->f_type = f->type;
    s->f_bsize = f->bsize;
    s->f_frsize = f->frsize;
    s->f_namelen = f->namelen;
    s->f_flags = f->flags;
    s->f_blocks = f->blocks;
    s->f_bfree = f->bfree;
    s->f_bavail = f->bavail;
    s->f_files = f->files;
    s->f_ffree = f->ffree;
    memcpy(&s->f_fsid, f->fsid, sizeof f->fsid);
}

/* Answers statfs from the catalog, with the figures that the daemon read when it last compared the
 * catalog with the source. Returns 0 if the caller must ask the kernel. */
static int answer(const char *path, struct statfs *s) {
    struct monarch_known k;
    MAYBE_NULL(s);
    if (!s || !monarch_know(AT_FDCWD, path, 1, &k))
        return 0;
    const struct monarch_filesystem *f = &k.session->control->source[k.entry->source].filesystem;
    if (!f->bsize || !monarch_is_fresh(k.session) || !monarch_mounts_are_ours(k.session) ||
        !monarch_can_tell(&k)) /* for a file that no longer exists, statfs must fail */
        return 0;
    fill(f, s);
    return 1;
}

PUBLIC int statfs(const char *path, struct statfs *s) {
    return answer(path, s) ? 0 : REAL(statfs)(path, s);
}

/* If `fd` is a descriptor of a copy, returns the path of the source that contains the copied file.
 * Otherwise returns NULL. Callers pass this path to statfs or statvfs. The path of the file itself
 * is not used, because the file may have been removed. */
static const char *source_of(int fd) {
    struct stat st;
    const struct monarch_catalog *c;
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    const struct monarch_entry *e = s && sys_fstat(fd, &st) == 0 && S_ISREG(st.st_mode)
                                        ? monarch_behind_copy(&s, &c, &st)
                                        : NULL;
    return e ? s->control->source[e->source].path : NULL;
}

PUBLIC int fstatfs(int fd, struct statfs *s) {
    const char *source = source_of(fd);
    return source ? statfs(source, s) : REAL(fstatfs)(fd, s);
}

/* Returns whether libc's statvfs stores the file system's type in the field after f_namemax. Older
 * versions of libc set this field to 0. The first call finds this out by a statvfs for "/". */
static int tells_type(void) {
    static int known;
    struct statvfs v;
    int tells = __atomic_load_n(&known, __ATOMIC_RELAXED), old_errno = errno;
    if (!tells) {
        const unsigned char *at = (const void *)(&v.f_namemax + 1);
        tells = 1;
        if (REAL(statvfs)("/", &v) == 0)
            for (size_t i = 0; i < sizeof(int); i++)
                tells |= at[i] ? 2 : 0;
        errno = old_errno;
        __atomic_store_n(&known, tells, __ATOMIC_RELAXED);
    }
    return tells & 2;
}

#define KERNEL_FILLED_FLAGS 0x20 /* the kernel sets it in f_flags; libc's statvfs clears it */

static void to_statvfs(const struct statfs *s, struct statvfs *v) {
    unsigned type = (unsigned)s->f_type;
    memset(v, 0, sizeof *v);
    v->f_bsize = (unsigned long)s->f_bsize;
    v->f_frsize = (unsigned long)(s->f_frsize ? s->f_frsize : s->f_bsize);
    v->f_blocks = s->f_blocks;
    v->f_bfree = s->f_bfree;
    v->f_bavail = s->f_bavail;
    v->f_files = s->f_files;
    v->f_ffree = s->f_ffree;
    v->f_favail = s->f_ffree;
    v->f_flag = (unsigned long)s->f_flags & ~(unsigned long)KERNEL_FILLED_FLAGS;
    v->f_namemax = (unsigned long)s->f_namelen;
    memcpy(&v->f_fsid, &s->f_fsid, sizeof v->f_fsid);
    if (tells_type())
        memcpy(&v->f_namemax + 1, &type, sizeof type);
}

PUBLIC int statvfs(const char *path, struct statvfs *v) {
    struct statfs s;
    MAYBE_NULL(v);
    if (!v || !answer(path, &s))
        return REAL(statvfs)(path, v);
    to_statvfs(&s, v);
    return 0;
}

PUBLIC int fstatvfs(int fd, struct statvfs *v) {
    const char *source = source_of(fd);
    return source ? statvfs(source, v) : REAL(fstatvfs)(fd, v);
}

/* This is a separate function, because its buffer takes much of the stack, and few calls need
 * it. */
__attribute__((noinline)) static int
handle_of_link(int dir, const char *path, struct file_handle *handle, int *mount, int flags) {
    char real[MONARCH_PATH_MAX];
    if (monarch_names_copy(path, real) && real[0])
        path = real;
    return REAL(name_to_handle_at)(dir, path, handle, mount, flags);
}

/* A handle identifies a file within its file system, so a copy's handle would be wrong for the
 * program. If `dir` is a descriptor of a copy, or if `path` is such a descriptor's link in /proc,
 * returns the handle of the source's file. */
PUBLIC int name_to_handle_at(int dir, const char *path, struct file_handle *handle, int *mount,
                             int flags) {
    MAYBE_NULL(path);
    if (__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE) && path) {
        int backing = monarch_means_descriptor(path, flags) ? monarch_backing_fd(dir) : -1;
        if (backing == -2) {
            errno = EOPNOTSUPP;
            return -1;
        }
        if (backing >= 0)
            dir = backing;
        else if (flags & AT_SYMLINK_FOLLOW)
            return handle_of_link(dir, path, handle, mount, flags);
    }
    return REAL(name_to_handle_at)(dir, path, handle, mount, flags);
}

TWIN(__statfs, statfs)
TWIN(statfs64, statfs)
TWIN(fstatfs64, fstatfs)
TWIN(statvfs64, statvfs)
TWIN(fstatvfs64, fstatvfs)
