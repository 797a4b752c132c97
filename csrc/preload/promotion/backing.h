/* Backing descriptors: descriptors of source files behind those of their copies.
 *
 * A backing descriptor is for what only the source can answer (locks, holes, extents). It is opened
 * when it is first needed. From then on it lives like the descriptor that it backs: it is
 * duplicated, inherited and closed with it. */
#pragma once

#include <stdint.h>

/* Atomic: the number of backing descriptors. While there is none, closing a descriptor costs
 * nothing more. */
extern uint32_t monarch_backing_count __attribute__((visibility("hidden")));

/* Returns the backing descriptor of a copy's descriptor, opened if need be and set to the same
 * offset. Returns -1 if the descriptor is not a copy's, or if the source file has lost its name; -2
 * if the backing descriptor cannot be opened. */
int monarch_backing_fd(int fd);

/* Called after a lock was granted, which a writer may have held before. If the source file differs
 * from the copy by now, the descriptor and its duplicates in this process become the source's. */
void monarch_backing_compare(int fd);

/* Makes a copy's descriptor, and its duplicates in this process, the source's. This is for calls
 * that later tell the program the descriptor's number, or that last until the file is changed.
 * Returns 0 if no further descriptor can be had. */
int monarch_become_source(int fd);

/* Notes that POSIX locks were asked for on a backing descriptor: they end when any descriptor of
 * the file is closed. */
void monarch_backing_has_posix_locks(void);

/* Whether the number is a backing descriptor's: the program does not know it, and would lose its
 * locks by closing it. */
int monarch_is_backing(int fd);

/* Called before a close or the like (close); before dup3(fd, fresh, flags) (replace); after `fresh`
 * has become a duplicate of `fd` (duplicate); when FD_CLOEXEC is set to `flag` (flag). */
void monarch_backing_close_slow(int fd);
void monarch_backing_replace_slow(int fd, int fresh, int flags);
void monarch_backing_duplicate_slow(int fd, int fresh);
void monarch_backing_flag_slow(int fd, int flag);

/* Called before a range is closed. Backing descriptors of descriptors outside the range stay open:
 * monarch_backing_that_stays returns the first of these from `from` on, or last + 1. */
void monarch_backing_close_range(unsigned first, unsigned last);
uint64_t monarch_backing_that_stays(uint64_t from, unsigned first, unsigned last);
void monarch_backing_flag_range(unsigned first, unsigned last); /* marks close-on-exec */

static inline int monarch_has_backing(void) {
    return __builtin_expect(__atomic_load_n(&monarch_backing_count, __ATOMIC_RELAXED) != 0, 0);
}
static inline void monarch_backing_close(int fd) {
    if (monarch_has_backing())
        monarch_backing_close_slow(fd);
}
