/* The one clock of the daemon's C code. */
#ifndef MONARCH_CLOCK_H
#define MONARCH_CLOCK_H

#include <stdint.h>
#include <time.h>

/* The time of CLOCK_MONOTONIC [ns]. */
static inline uint64_t monarch_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

#endif
