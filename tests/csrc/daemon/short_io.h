/* System calls that are interrupted and move few bytes, as POSIX allows. Include this file before
 * the file of csrc: its calls are then made here. */
#pragma once

#include <errno.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* The most bytes that a call moves; 0: calls are made as they are, and never interrupted. */
static size_t most_moved;
static unsigned moves; /* number of calls so far */

/* Returns whether the call is interrupted. Otherwise shortens it. */
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
/* Sends the message's bytes as a call of send() would, so that any number of them can be sent. */
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
