/* Replacements for system calls. They are often interrupted and move only a few bytes at a time, as
 * POSIX allows. Include this file before a file of csrc, so that the calls in that file go to these
 * replacements. */
#pragma once

#include <errno.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* The largest number of bytes that one call moves. If it is 0, the calls are made unchanged and are
 * never interrupted. */
static size_t most_moved;
static unsigned moves; /* number of calls made while most_moved is not 0 */

/* For one call in three, sets errno to EINTR and returns 1. For any other call, reduces *n to at
 * most most_moved and returns 0. If most_moved is 0, only returns 0. */
static inline int is_interrupted(size_t *n) {
    if (!most_moved)
        return 0;
    if (moves++ % 3 == 0) {
        errno = EINTR;
        return 1;
    }
    *n = *n < most_moved ? *n : most_moved;
    return 0;
}

static inline ssize_t short_pread(int fd, void *to, size_t n, off_t at) {
    return is_interrupted(&n) ? -1 : pread(fd, to, n, at);
}
static inline ssize_t short_pwrite(int fd, const void *from, size_t n, off_t at) {
    return is_interrupted(&n) ? -1 : pwrite(fd, from, n, at);
}
static inline ssize_t short_recv(int fd, void *to, size_t n, int flags) {
    return is_interrupted(&n) ? -1 : recv(fd, to, n, flags);
}
static inline ssize_t short_send(int fd, const void *from, size_t n, int flags) {
    return is_interrupted(&n) ? -1 : send(fd, from, n, flags);
}
static inline ssize_t short_sendfile(int to, int from, off_t *at, size_t n) {
    return is_interrupted(&n) ? -1 : sendfile(to, from, at, n);
}
/* Joins the parts of the message and sends them with short_send, so that a call can also end within
 * a part. */
static inline ssize_t short_sendmsg(int fd, const struct msghdr *m, int flags) {
    char all[65536];
    size_t n = 0;
    if (!most_moved)
        return sendmsg(fd, m, flags);
    for (size_t i = 0; i < m->msg_iovlen; i++)
        for (size_t k = 0; k < m->msg_iov[i].iov_len; k++)
            all[n++] = ((const char *)m->msg_iov[i].iov_base)[k];
    return short_send(fd, all, n, flags);
}
#define pread short_pread
#define pwrite short_pwrite
#define recv short_recv
#define send short_send
#define sendfile short_sendfile
#define sendmsg short_sendmsg
