/* The futex calls of the code under test. */
#ifndef FUTEX_H
#define FUTEX_H

#include <stdint.h>
#include <time.h>

/* Does the work of futex(2) under the scheduler. Returns -errno on failure and 0 on success. Unlike
 * the system call, it also returns 0 after waking threads. at: the caller's address. */
long scheduled_futex(uint32_t *word, int how, uint32_t value, const struct timespec *limit,
                     uint32_t bits, const void *at);

#endif
