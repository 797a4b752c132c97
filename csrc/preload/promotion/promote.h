/* Promotion: an open descriptor of a source's file becomes a descriptor of the complete copy. */
#pragma once

#include "preload/descriptors/track.h"
#include "preload/fill/wait.h"

/* Promotes the descriptor. Returns whether it refers to the copy now. tracked: the descriptor's
 * word in the table (track.h). */
int monarch_promote(int fd, uint64_t tracked, const struct monarch_wanted *w);

/* Returns whether the descriptor refers to the entry's file at the source. The check compares
 * device and inode. These numbers never change, so the source's server is not asked. */
int monarch_is_still(int fd, const struct session *s, const struct monarch_entry *e);
/* Returns whether the descriptor still refers to the file to which it referred when the program's
 * call began (inode w->ino). The entry may describe another file by now, so it is not compared. */
int monarch_is_callers(int fd, const struct monarch_wanted *w);

/* Call this when locks or asynchronous signals are requested on the file of this descriptor.
 * Closing any descriptor of the file would drop these locks, so no descriptor of the file is
 * promoted from then on. If the promotion of such a descriptor has already begun, waits until it
 * has ended. Returns 0 if the promotion does not end within 5 s, because the source does not
 * answer. */
int monarch_keep_locks(int fd);
/* Call this after a lock was granted on a source's file. If the file differs from its entry in the
 * catalog, records the file as changed, so that its reads go to the source. */
void monarch_compare_source(int fd);
/* Call this before checking whether `fd` is a descriptor of a copy. From then on, `fd` is not
 * promoted, so the result of the check stays valid. Returns 0 if monarch_keep_locks returns 0. */
static inline int monarch_settle(int fd) { return !monarch_tracked(fd) || monarch_keep_locks(fd); }
