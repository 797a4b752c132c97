/* Futexes of the code under test. */
#ifndef FUTEX_H
#define FUTEX_H

#include <stdint.h>
#include <time.h>

/* As futex(2), -errno; `at` is its caller. */
long scheduled_futex(uint32_t *word, int how, uint32_t value, const struct timespec *limit,
                     uint32_t bits, const void *at);

#endif
