/* The word that the daemon sleeps on: its own C threads ring it as the clients do. */
#ifndef MONARCH_DOORBELL_H
#define MONARCH_DOORBELL_H

#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline void monarch_doorbell_ring(uint32_t *doorbell) {
    __atomic_fetch_add(doorbell, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, doorbell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

#endif
