#include "preload/calls/descriptors.c"

#include "made.h"

/* If `is` is 1, the library behaves as with an older libc, which lacks some functions. */
EXPORT void descriptors_lack(int is) {
    void *none = is ? (void *)1 : NULL;
    monarch_real.close_range = monarch_real.closefrom = monarch_real.copy_file_range = none;
}
/* The functions below return -errno if the call fails. */
static int64_t of(int64_t r) { return r < 0 ? -errno : r; }
EXPORT int64_t descriptors_close(int fd) { return of(close(fd)); }
EXPORT int64_t descriptors_close_range(unsigned first, unsigned last, int flags) {
    errno = 54321;
    int r = close_range(first, last, flags);
    return r == 0 && errno != 54321 ? -9999 : of(r);
}
EXPORT void descriptors_closefrom(int first) { closefrom(first); }
EXPORT int64_t descriptors_dup(int fd) { return of(dup(fd)); }
EXPORT int64_t descriptors_dup2(int fd, int fresh) { return of(dup2(fd, fresh)); }
EXPORT int64_t descriptors_dup3(int fd, int fresh, int flags) { return of(dup3(fd, fresh, flags)); }
EXPORT int64_t descriptors_fcntl(int fd, int command, int64_t arg) {
    return of(fcntl(fd, command, arg));
}
EXPORT int64_t descriptors_lseek(int fd, int64_t at, int whence) {
    return of(lseek(fd, at, whence));
}
EXPORT int64_t descriptors_sendfile(int to, int from, int64_t *at, uint64_t n) {
    return of(sendfile(to, from, at, n));
}
EXPORT int64_t descriptors_splice(int from, int64_t *at, int to, uint64_t n) {
    return of(splice(from, at, to, NULL, n, 0));
}
EXPORT int64_t descriptors_copy_file_range(int from, int64_t *at, int to, int64_t *to_at,
                                           uint64_t n, unsigned flags) {
    return of(copy_file_range(from, at, to, to_at, n, flags));
}
/* Opens a stream (FILE) of the descriptor and closes it. Returns whether both have succeeded. */
EXPORT int descriptors_stream(int fd) {
    FILE *f = fdopen(fd, "r");
    return f && fclose(f) == 0;
}

/* refused: for each of the next two calls of copy_file_range, the errno with which the kernel
 * refuses the call; 0: the kernel does not refuse it. moved: the descriptors from which the calls
 * were to copy. */
static int refused[2], moved[3], moves;
static ssize_t move(int from, off64_t *at, int to, off64_t *to_at, size_t n, unsigned flags) {
    moved[moves++] = from;
    if (moves <= 2 && refused[moves - 1]) {
        errno = refused[moves - 1];
        return -1;
    }
    return (ssize_t)monarch_result(
        sys6(SYS_copy_file_range, from, (long)at, to, (long)to_at, (long)n, flags));
}
/* Calls copy_file_range. first, second: see `refused`. Returns the call's result, or -errno. Writes
 * to `from_all` the descriptors from which the kernel was asked to copy, followed by -1. */
EXPORT int64_t descriptors_copy_refused(int from, int64_t *at, int to, uint64_t n, int first,
                                        int second, int *from_all) {
    refused[0] = first;
    refused[1] = second;
    moves = 0;
    monarch_real.copy_file_range = (void *)move;
    errno = 54321;
    int64_t r = copy_file_range(from, at, to, NULL, n, 0);
    int error = errno;
    monarch_real.copy_file_range = NULL;
    for (int i = 0; i < 3; i++)
        from_all[i] = i < moves ? moved[i] : -1;
    return r < 0 ? -error : error == 54321 ? r : -9999;
}
