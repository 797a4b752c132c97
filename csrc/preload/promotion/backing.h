/* Manages backing descriptors: descriptors of source files, which belong to descriptors of copies.
 *
 * For some calls on a copy's descriptor (locks, holes, extents), only the source has the answer.
 * The library makes these calls on the backing descriptor instead. A backing descriptor is opened
 * when it is first needed. From then on, it is duplicated, inherited and closed together with the
 * copy's descriptor. */
#pragma once

#include <stdint.h>

/* Atomic: the number of backing descriptors. While this number is 0, calls such as close need not
 * check for a backing descriptor. */
extern uint32_t monarch_backing_count __attribute__((visibility("hidden")));

/* Returns the backing descriptor of `fd`. Opens it if there is none yet, and sets its offset to
 * the offset of `fd`. Returns -1 if `fd` is not a descriptor of a copy, or if the source's file
 * was renamed or removed. Returns -2 if the backing descriptor cannot be opened. */
int monarch_backing_fd(int fd);

/* Call this after a lock was granted on the backing descriptor of `fd`. An earlier holder of the
 * lock may have changed the source's file. If the file now differs from the copy, replaces `fd` by
 * a descriptor of the source's file. If the process has only one thread, replaces the duplicates
 * of `fd` too. */
void monarch_backing_compare(int fd);

/* Replaces a copy's descriptor by a descriptor of the source's file. If the process has only one
 * thread, replaces the descriptor's duplicates too. fcntl calls this function for F_SETLEASE,
 * F_SETSIG, F_SETOWN and F_SETOWN_EX. For these commands, a backing descriptor is not enough: the
 * kernel later sends a signal with the descriptor's number, and the program knows only its own
 * number. Returns 0 if the result of monarch_backing_fd is -2, for example because no descriptor
 * number is free. */
int monarch_become_source(int fd);

/* Records that the program has requested POSIX locks on a backing descriptor. From now on, the
 * library releases these locks when the program closes any descriptor of the copy. The kernel does
 * the same for other files: a close of any descriptor of a file releases the process's POSIX locks
 * on the file. */
void monarch_backing_has_posix_locks(void);

/* Returns whether `fd` is a backing descriptor. The library keeps the program from closing a
 * backing descriptor (in a loop over all numbers, for example), because this close would release
 * locks. */
int monarch_is_backing(int fd);

/* The next four functions do to the backing descriptor of `fd` what the program does to `fd`. */

/* Call this before `fd` is closed. */
void monarch_backing_close_slow(int fd);
/* Call this before dup3(fd, fresh, flags). */
void monarch_backing_replace_slow(int fd, int fresh, int flags);
/* Call this after `fresh` has become a duplicate of `fd`. */
void monarch_backing_duplicate_slow(int fd, int fresh);
/* Call this when FD_CLOEXEC of `fd` is set to `flag`. */
void monarch_backing_flag_slow(int fd, int flag);

/* The next three functions are for close_range and closefrom, which close all descriptors from
 * `first` to `last`, or set their FD_CLOEXEC. */

/* Call this before the descriptors from `first` to `last` are closed. Calls
 * monarch_backing_close_slow for each of them that need not stay open
 * (monarch_backing_that_stays). */
void monarch_backing_close_range(unsigned first, unsigned last);
/* Returns the first backing descriptor from `from` to `last` that must stay open, or last + 1 if
 * there is none. A backing descriptor must stay open if the copy's descriptor to which it belongs
 * is not in the range. */
uint64_t monarch_backing_that_stays(uint64_t from, unsigned first, unsigned last);
/* Call this when the program sets FD_CLOEXEC on all descriptors from `first` to `last`. */
void monarch_backing_flag_range(unsigned first, unsigned last);

static inline int monarch_has_backing(void) {
    return __builtin_expect(__atomic_load_n(&monarch_backing_count, __ATOMIC_RELAXED) != 0, 0);
}
static inline void monarch_backing_close(int fd) {
    if (monarch_has_backing())
        monarch_backing_close_slow(fd);
}
