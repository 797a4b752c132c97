#include "preload/calls/filesystem.c"

#include "made.h"

/* Writes two answers of statvfs for `path`: to `ours` the answer that the library makes from the
 * kernel's statfs, and to `libcs` the answer of libc. Before that, fills `ours` and `libcs` with
 * different bytes. Returns the size of an answer, or 0 if a call has failed. */
EXPORT int filesystem_both(const char *path, char *ours, char *libcs) {
    struct statfs s;
    memset(ours, 'z', sizeof(struct statvfs));
    memset(libcs, 'y', sizeof(struct statvfs));
    if (REAL(statfs)(path, &s) != 0 || REAL(statvfs)(path, (struct statvfs *)libcs) != 0)
        return 0;
    to_statvfs(&s, (struct statvfs *)ours);
    return sizeof(struct statvfs);
}
EXPORT int filesystem_statfs(const char *path, char *out) {
    memset(out, 'z', sizeof(struct statfs));
    return statfs(path, (struct statfs *)out) == 0 ? (int)sizeof(struct statfs) : -errno;
}
EXPORT int filesystem_fstatfs(int fd, char *out) {
    memset(out, 'z', sizeof(struct statfs));
    return fstatfs(fd, (struct statfs *)out) == 0 ? (int)sizeof(struct statfs) : -errno;
}
EXPORT int filesystem_statvfs(const char *path, char *out) {
    memset(out, 'z', sizeof(struct statvfs));
    return statvfs(path, (struct statvfs *)out) == 0 ? (int)sizeof(struct statvfs) : -errno;
}
EXPORT int filesystem_fstatvfs(int fd, char *out) {
    memset(out, 'z', sizeof(struct statvfs));
    return fstatvfs(fd, (struct statvfs *)out) == 0 ? (int)sizeof(struct statvfs) : -errno;
}
/* Converts a statfs with these fields to a statvfs. Writes the three fields of the result to
 * `out`. */
EXPORT void filesystem_odd(uint64_t bsize, uint64_t frsize, uint64_t flags, uint64_t *out) {
    struct statfs s = {.f_bsize = (long)bsize, .f_frsize = (long)frsize, .f_flags = (long)flags};
    struct statvfs v;
    to_statvfs(&s, &v);
    out[0] = v.f_bsize;
    out[1] = v.f_frsize;
    out[2] = v.f_flag;
}
/* Makes the library determine this process's mount namespace anew. */
EXPORT void filesystem_mounts_anew(struct session *s) { s->mounts = 0; }
/* Writes the handle of a file, and returns its size, or -errno. */
EXPORT int filesystem_handle(int dir, const char *path, int flags, char *out) {
    struct {
        struct file_handle h;
        unsigned char more[MAX_HANDLE_SZ];
    } of = {.h.handle_bytes = MAX_HANDLE_SZ};
    int mount;
    if (name_to_handle_at(dir, path, &of.h, &mount, flags) != 0)
        return -errno;
    memcpy(out, &of.h.handle_type, sizeof of.h.handle_type);
    memcpy(out + sizeof of.h.handle_type, of.h.f_handle, of.h.handle_bytes);
    memcpy(out + sizeof of.h.handle_type + of.h.handle_bytes, &mount, sizeof mount);
    return (int)(sizeof of.h.handle_type + of.h.handle_bytes + sizeof mount);
}
