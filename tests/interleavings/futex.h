/* The futex calls of the code under test. */
#ifndef FUTEX_H
#define FUTEX_H

#include <stdint.h>
#include <time.h>

/* Does the work of futex(2) under the scheduler. Returns 0, also after a wake, or -errno. at:
 * address of the caller. */
long scheduled_futex(uint32_t *word, int how, uint32_t value, const struct timespec *limit,
                     uint32_t bits, const void *at);

#endif
