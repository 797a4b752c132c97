/* Promotion: an open descriptor of a source's file becomes a descriptor of the complete copy. */
#pragma once

#include "preload/descriptors/track.h"
#include "preload/fill/demand.h"

/* Promotes the descriptor. Returns whether it refers to the copy now. tracked: the descriptor's
 * word in the table (track.h). */
int monarch_promote(int fd, uint64_t tracked, const struct monarch_wanted *w);

/* Whether the descriptor is of the entry's file at the source. The check compares device and inode.
 * They never change, so the source's server is not asked. */
int monarch_is_still(int fd, const struct session *s, const struct monarch_entry *e);
/* Whether the descriptor is still of the file with which the caller's call began (inode w->ino).
 * The entry may describe another file by now. */
int monarch_is_callers(int fd, const struct monarch_wanted *w);

/* Call this when locks or asynchronous signals are requested on the file of this descriptor.
 * Closing any descriptor of the file would drop these locks, so no descriptor of the file is
 * promoted from then on. If a promotion of the file has already begun, waits for its end. Returns 0
 * if it does not end within 5 s, because the source does not answer. */
int monarch_keep_locks(int fd);
/* Call this after a lock was granted on a source's file. If the file differs from its entry in the
 * catalog, records it as changed, so that the source serves its reads. */
void monarch_compare_source(int fd);
/* Call this before checking whether a descriptor refers to a copy. From then on, the descriptor is
 * not promoted, so the result of the check stays the same. Returns 0 in the same case as
 * monarch_keep_locks. */
static inline int monarch_settle(int fd) { return !monarch_tracked(fd) || monarch_keep_locks(fd); }
