/* Promotion: a complete copy takes the place of its source file on an open descriptor. */
#pragma once

#include "preload/descriptors/track.h"
#include "preload/fill/demand.h"

/* Promotes the descriptor; returns whether it is the copy's now. `tracked` is its word in the
 * table. */
int monarch_promote(int fd, uint64_t tracked, const struct monarch_wanted *w);

/* Whether the descriptor is of the entry's file at the source. No server is asked: device and inode
 * are enough, and they do not change. */
int monarch_is_still(int fd, const struct session *s, const struct monarch_entry *e);
/* Whether the descriptor is of the file with which the call began, whatever file the entry
 * describes by now. */
int monarch_is_callers(int fd, const struct monarch_wanted *w);

/* Called when locks are taken, or asynchronous signals asked for, on the file behind this
 * descriptor. Closing any descriptor of the file would drop these locks, so from here on no
 * descriptor of the file is promoted. Returns 0 if a promotion of the file that was already under
 * way does not end within 5 s, because the source does not answer. */
int monarch_keep_locks(int fd);
/* Called after a lock was granted on a source's file: if the file differs from what the catalog
 * knows of it, records it as changed, so that the source answers its reads. */
void monarch_compare_source(int fd);
/* Called before asking whether a descriptor is a copy's: from here on the answer stays the same.
 * Returns 0 as monarch_keep_locks does. */
static inline int monarch_settle(int fd) { return !monarch_tracked(fd) || monarch_keep_locks(fd); }
