/* Promotion: a complete copy takes the place of its source file on an open descriptor. */
#ifndef MONARCH_PROMOTE_H
#define MONARCH_PROMOTE_H

#include "preload/descriptors/track.h"
#include "preload/fill/demand.h"

/* Whether the descriptor is the copy's now; `tracked` is its word in the table. */
int monarch_promote(int fd, uint64_t tracked, const struct monarch_wanted *w);

/* Whether the descriptor is of the entry's file at the source. No word with a server: the numbers
 * are enough, and they do not change. */
int monarch_is_still(int fd, const struct session *s, const struct monarch_entry *e);
/* The same of the file that a call began with, whatever the entry is of by now. */
int monarch_is_callers(int fd, const struct monarch_wanted *w);

/* Locks were taken, or asynchronous signals asked for, on the file behind this descriptor: closing
 * any descriptor of it would drop them, so that none of its descriptors is replaced from here on.
 * 0: one that is being replaced was not closed within 5 s, as the source does not answer. */
int monarch_keep_locks(int fd);
/* After a lock was granted on a source's file: compares the file with what the catalog knows of it,
 * and records one that differs as changed, so that the source answers its reads. */
void monarch_compare_source(int fd);
/* Before the question whether a descriptor is a copy's: from here on the answer stays. 0 as for
 * monarch_keep_locks. */
static inline int monarch_settle(int fd) { return !monarch_tracked(fd) || monarch_keep_locks(fd); }

#endif
