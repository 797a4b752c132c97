/* Promotes an open descriptor of a source's file: the descriptor then refers to the complete
 * copy. */
#pragma once

#include "preload/descriptors/track.h"
#include "preload/fill/wait.h"

/* Makes `fd` refer to the complete copy instead of the source's file. Returns whether `fd` refers
 * to the copy now. tracked: the descriptor's word (track.h). */
int monarch_promote(int fd, uint64_t tracked, const struct monarch_wanted *w);

/* Returns whether the descriptor refers to the entry's file at the source, according to the device
 * and inode numbers. These numbers never change while the file is open. So the numbers that the
 * kernel has cached are enough, and the source's server is not asked. */
int monarch_is_still(int fd, const struct session *s, const struct monarch_entry *e);
/* Returns whether the descriptor still refers to the same file as at the beginning of the
 * program's call. Compares the file's inode number with w->ino. The entry's inode number would be
 * wrong, because the entry may describe another file by now. */
int monarch_is_callers(int fd, const struct monarch_wanted *w);

/* Call this when the program requests locks or asynchronous signals on the file to which `fd`
 * refers. Prevents all further promotions of the file's descriptors: a promotion closes a
 * descriptor of the file, and the kernel would then release the locks. If a promotion has already
 * begun, waits for its end. Returns 0 if it has not ended after 5 s, for example because the
 * source does not answer. */
int monarch_keep_locks(int fd);
/* Call this after a lock was granted on a source's file. If the file differs from its entry in the
 * catalog, records the file as changed, so that its reads go to the source. */
void monarch_compare_source(int fd);
/* Prevents later promotions of `fd`. Call this before a check whether `fd` is a descriptor of a
 * copy. Otherwise, a promotion could make the result of the check wrong. Returns 0 if a promotion
 * has already begun, and does not end in time (monarch_keep_locks). */
static inline int monarch_settle(int fd) { return !monarch_tracked(fd) || monarch_keep_locks(fd); }
