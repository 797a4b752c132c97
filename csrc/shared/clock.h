/* The clock that the library and the daemon's C code use. */
#pragma once

#include <stdint.h>
#include <time.h>

/* Returns the time of CLOCK_MONOTONIC [ns]. */
static inline uint64_t monarch_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}
