/* In this unit, libc's functions are replaced by functions that fail, so that a test sees which
 * calls reach libc. The fortified functions fail with EOVERFLOW, the others with ENOTTY. */
#include "preload/calls/look.c"

#include "made.h"

/* Asks whether the access is allowed. Returns 0 or -errno, or -9999 if the call has succeeded but
 * has changed errno. */
EXPORT int look_access(int call, int dir, const char *path, int mode, int flags) {
    errno = 54321;
    int r = call == 0   ? access(path, mode)
            : call == 1 ? eaccess(path, mode)
            : call == 2 ? euidaccess(path, mode)
                        : faccessat(dir, path, mode, flags);
    return r < 0 ? -errno : errno == 54321 ? r : -9999;
}
/* Reads a link, and returns what the call returns, or -errno. The fortified calls are told that the
 * buffer has `size` bytes. */
EXPORT int64_t look_link(int call, int dir, const char *path, char *target, uint64_t n,
                         uint64_t size) {
    int64_t r = call == 0   ? readlink(path, target, n)
                : call == 1 ? readlinkat(dir, path, target, n)
                : call == 2 ? __readlink_chk(path, target, n, size)
                            : __readlinkat_chk(dir, path, target, n, size);
    return r < 0 ? -errno : r;
}
/* Writes the real path to `out`, which has PATH_MAX bytes. Returns 0 or -errno, or -9999 if the
 * call has returned the path in the wrong buffer. call 0: realpath with a buffer; 1: realpath
 * without a buffer; 2: canonicalize_file_name; 3: the fortified realpath with a buffer of `size`
 * bytes. */
EXPORT int look_real(int call, const char *path, uint64_t size, char *out) {
    char buffer[PATH_MAX];
    char *r = call == 0   ? realpath(path, buffer)
              : call == 1 ? realpath(path, NULL)
              : call == 2 ? canonicalize_file_name(path)
                          : __realpath_chk(path, buffer, size);
    if (!r)
        return -errno;
    strcpy(out, r);
    int is_right = (r == buffer) == (call == 0 || call == 3);
    if (r != buffer)
        free(r);
    return is_right ? 0 : -9999;
}
static int fail(void) {
    errno = ENOTTY;
    return -1;
}
static ssize_t fail_to_read(void) { return fail(); }
static char *fail_to_find(void) { return fail(), NULL; }
/* These stand for libc's fortified functions. */
static ssize_t end_read(void) {
    errno = EOVERFLOW;
    return -1;
}
static char *end_find(void) {
    errno = EOVERFLOW;
    return NULL;
}
EXPORT void look_replace(int is) {
    monarch_real.access = monarch_real.eaccess = monarch_real.euidaccess = monarch_real.faccessat =
        is ? (void *)fail : NULL;
    monarch_real.readlink = monarch_real.readlinkat = is ? (void *)fail_to_read : NULL;
    monarch_real.realpath = is ? (void *)fail_to_find : NULL;
    monarch_real.__readlink_chk = monarch_real.__readlinkat_chk = is ? (void *)end_read : NULL;
    monarch_real.__realpath_chk = is ? (void *)end_find : NULL;
}
