/* Backing descriptors: descriptors of source files behind those of their copies.
 *
 * A backing descriptor is for what only the source can answer (locks, holes, extents). It is opened
 * when it is first needed. From then on it lives like the descriptor that it backs: it is
 * duplicated, inherited and closed with it. */
#pragma once

#include <stdint.h>

/* Atomic: the number of backing descriptors. While there is none, closing a descriptor costs
 * nothing extra. */
extern uint32_t monarch_backing_count __attribute__((visibility("hidden")));

/* Returns the backing descriptor of a copy's descriptor, opened if need be and set to the same
 * offset. Returns -1 if the descriptor is not a copy's, or if the source file has been renamed or
 * removed. Returns -2 if the backing descriptor cannot be opened. */
int monarch_backing_fd(int fd);

/* Called after a lock was granted, because a writer may have held the lock before. If the source
 * file differs from the copy by now, replaces the descriptor and its duplicates in this process by
 * descriptors of the source file. */
void monarch_backing_compare(int fd);

/* Replaces a copy's descriptor, and its duplicates in this process, by descriptors of the source
 * file. This is for calls that later tell the program the descriptor's number, or whose effect
 * lasts until the file is changed. Returns 0 if the process can open no further descriptor. */
int monarch_become_source(int fd);

/* Notes that POSIX locks were asked for on a backing descriptor: they end when any descriptor of
 * the file is closed. */
void monarch_backing_has_posix_locks(void);

/* Whether `fd` is a backing descriptor. The program does not know of it, and would lose locks by
 * closing it. */
int monarch_is_backing(int fd);

/* Each keeps the backing descriptor of `fd` in step with `fd`. They are called before `fd` is
 * closed (close); before dup3(fd, fresh, flags) (replace); after `fresh` has become a duplicate of
 * `fd` (duplicate); and when FD_CLOEXEC of `fd` is set to `flag` (flag). */
void monarch_backing_close_slow(int fd);
void monarch_backing_replace_slow(int fd, int fresh, int flags);
void monarch_backing_duplicate_slow(int fd, int fresh);
void monarch_backing_flag_slow(int fd, int flag);

/* Called before a range is closed. A backing descriptor in the range stays open if the descriptor
 * that it backs lies outside the range. monarch_backing_that_stays returns the first one of this
 * kind from `from` on, or last + 1. */
void monarch_backing_close_range(unsigned first, unsigned last);
uint64_t monarch_backing_that_stays(uint64_t from, unsigned first, unsigned last);
void monarch_backing_flag_range(unsigned first, unsigned last); /* sets FD_CLOEXEC */

static inline int monarch_has_backing(void) {
    return __builtin_expect(__atomic_load_n(&monarch_backing_count, __ATOMIC_RELAXED) != 0, 0);
}
static inline void monarch_backing_close(int fd) {
    if (monarch_has_backing())
        monarch_backing_close_slow(fd);
}
