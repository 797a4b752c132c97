/* Joins threads with a time limit, because a thread may hang in a system call on a file system that
 * does not answer. */
#pragma once

#include <pthread.h>
#include <time.h>

static inline struct timespec monarch_join_limit(int limit_ms) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += limit_ms / 1000;
    until.tv_nsec += limit_ms % 1000 * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    return until;
}

/* Joins the thread. Returns 0 if the thread has not ended by `until`, otherwise 1. */
static inline int monarch_join(pthread_t thread, const struct timespec *until) {
    return pthread_timedjoin_np(thread, NULL, until) == 0;
}
