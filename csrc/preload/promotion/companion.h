/* Companions: descriptors of source files that stand behind descriptors of copies.
 *
 * A companion is for what only the source can answer (locks, holes, extents). It is opened when it
 * is first needed, and from then on it lives like the descriptor that it stands behind: duplicated,
 * inherited and closed with it. */
#ifndef MONARCH_COMPANION_H
#define MONARCH_COMPANION_H

#include <stdint.h>

/* Atomic: how many there are. While there is none, descriptors are closed at no cost. */
extern uint32_t monarch_companions __attribute__((visibility("hidden")));

/* The companion of a copy's descriptor, opened if need be: at the same offset. -1 if the descriptor
 * is none of a copy, or its file has no name any more; -2 if it cannot be opened. */
int monarch_companion(int fd);

/* After a lock was granted: a writer may have been there before. If the file is no longer what the
 * copy is, the descriptor, and its duplicates in this process, become the source's. */
void monarch_companion_compare(int fd);

/* For what tells a program of its descriptor's number later, or goes on until the file is changed:
 * a copy's descriptor, and its duplicates in this process, become the source's. 0 if there can be
 * no further descriptor. */
int monarch_become_source(int fd);

/* POSIX locks were asked for on a companion: they end with any descriptor of the file. */
void monarch_companion_has_posix_locks(void);

/* Whether the number is a companion's: a program that closes it closes one that it does not know,
 * and would lose the lock. */
int monarch_is_companion(int fd);

/* Before a close or the like; before dup3(fd, fresh, flags); `fresh` is a duplicate of `fd`;
 * FD_CLOEXEC was set to `flag`. */
void monarch_companion_close_slow(int fd);
void monarch_companion_replace_slow(int fd, int fresh, int flags);
void monarch_companion_again_slow(int fd, int fresh);
void monarch_companion_flag_slow(int fd, int flag);

/* Before a range is closed, but for companions of descriptors that are not in it: these stay. The
 * next one of them, not below `from`; last + 1 if there is none. */
void monarch_companion_close_range(unsigned first, unsigned last);
uint64_t monarch_companion_that_stays(uint64_t from, unsigned first, unsigned last);
void monarch_companion_flag_range(unsigned first, unsigned last); /* marked close-on-exec */

static inline int monarch_has_companions(void) {
    return __builtin_expect(__atomic_load_n(&monarch_companions, __ATOMIC_RELAXED) != 0, 0);
}
static inline void monarch_companion_close(int fd) {
    if (monarch_has_companions())
        monarch_companion_close_slow(fd);
}

#endif
