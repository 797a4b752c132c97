/* Companions: descriptors of source files that stand behind descriptors of copies.
 *
 * A companion is for what only the source can answer (locks, holes, extents). It is opened when it
 * is first needed. From then on it lives like the descriptor that it stands behind: it is
 * duplicated, inherited and closed with it. */
#ifndef MONARCH_COMPANION_H
#define MONARCH_COMPANION_H

#include <stdint.h>

/* Atomic: the number of companions. While there is none, closing a descriptor costs nothing
 * more. */
extern uint32_t monarch_companions __attribute__((visibility("hidden")));

/* The companion of a copy's descriptor, opened if need be, at the same offset. -1: the descriptor
 * is not one of a copy, or its file has no name any more. -2: the companion cannot be opened. */
int monarch_companion(int fd);

/* Called after a lock was granted, before which a writer may have held it. If the file differs from
 * the copy, the descriptor and its duplicates in this process become the source's. */
void monarch_companion_compare(int fd);

/* For calls that later tell the program the descriptor's number, or last until the file is changed:
 * a copy's descriptor and its duplicates in this process become the source's. 0: no further
 * descriptor can be had. */
int monarch_become_source(int fd);

/* Notes that POSIX locks were asked for on a companion: they end when any descriptor of the file is
 * closed. */
void monarch_companion_has_posix_locks(void);

/* Whether the number is a companion's: the program does not know it, and would lose its locks by
 * closing it. */
int monarch_is_companion(int fd);

/* Called before a close or the like (close); before dup3(fd, fresh, flags) (replace); after `fresh`
 * has become a duplicate of `fd` (again); when FD_CLOEXEC is set to `flag` (flag). */
void monarch_companion_close_slow(int fd);
void monarch_companion_replace_slow(int fd, int fresh, int flags);
void monarch_companion_again_slow(int fd, int fresh);
void monarch_companion_flag_slow(int fd, int flag);

/* Called before a range is closed. Companions of descriptors outside the range stay open.
 * that_stays returns the next of them that is not below `from`, or last + 1. */
void monarch_companion_close_range(unsigned first, unsigned last);
uint64_t monarch_companion_that_stays(uint64_t from, unsigned first, unsigned last);
void monarch_companion_flag_range(unsigned first, unsigned last); /* marks close-on-exec */

static inline int monarch_has_companions(void) {
    return __builtin_expect(__atomic_load_n(&monarch_companions, __ATOMIC_RELAXED) != 0, 0);
}
static inline void monarch_companion_close(int fd) {
    if (monarch_has_companions())
        monarch_companion_close_slow(fd);
}

#endif
