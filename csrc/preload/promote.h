/* Promotion: a complete copy takes the place of its source file on an open descriptor. */
#ifndef MONARCH_PROMOTE_H
#define MONARCH_PROMOTE_H

#include "demand.h"

/* Whether the descriptor is the copy's now; `tracked` is its word in the table. */
int monarch_promote(int fd, uint64_t tracked, const struct monarch_wanted *w);

/* Whether the descriptor is of the entry's file at the source. No word with a server: the numbers
 * are enough, and they do not change. */
int monarch_is_still(int fd, const struct session *s, const struct monarch_entry *e);

/* Locks were taken, or asynchronous signals asked for, on the file behind this descriptor: closing
 * any descriptor of it would drop them, so that none of its descriptors is replaced from here on.
 */
void monarch_keep_locks(int fd);
int monarch_has_locks(uint64_t dev, uint64_t ino);

#endif
