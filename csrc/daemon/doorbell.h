/* Futexes as the daemon uses them: the word that it sleeps on, rung by its own C threads as by the
 * clients. */
#ifndef MONARCH_DOORBELL_H
#define MONARCH_DOORBELL_H

#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline void monarch_futex_wake(uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static inline void monarch_doorbell_ring(uint32_t *doorbell) {
    __atomic_fetch_add(doorbell, 1, __ATOMIC_SEQ_CST);
    monarch_futex_wake(doorbell);
}

#endif
