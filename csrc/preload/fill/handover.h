/* Handing over descriptors: the read of a program is the fill.
 *
 * A file without a copy is read at its source, as the program
 * asks, on the descriptor that it has. Once all of it was read the descriptor is handed over to the
 * daemon, which makes the copy from the pages that the kernel has kept: the source has seen one
 * open and every byte once. Losing a handover costs speed: the daemon then fills the file itself.
 */
#ifndef MONARCH_HANDOVER_H
#define MONARCH_HANDOVER_H

#include <sys/stat.h>

#include "preload/session/session.h"

/* Whether the reads of a file, open as `fd`, that the catalog does not know are to be its fill:
 * then it is direct from here on, and told of when it is handed over or closed. */
int monarch_read_unmet(struct session *s, int fd, const struct stat *st);
/* All of these are for descriptors of which `tracked`, their word, has TRACK_DIRECT. */

/* Before a read. Whether a copy has come from elsewhere: then the descriptor is not direct any
 * more. */
int monarch_direct_is_over(int fd, uint64_t tracked);
/* After a read of `n` bytes, up to the offset `end`; -1: up to the descriptor's own. */
void monarch_read_direct(int fd, uint64_t tracked, uint64_t n, int64_t end);
/* The descriptor goes to the daemon now, however much of the file was read; is_read: all of it. */
void monarch_hand_over(int fd, uint64_t tracked, int is_read);
/* Before the descriptor is closed: what was read in part, or by calls that nobody has seen. */
void monarch_close_direct(int fd, uint64_t tracked);

/* Before a lock, a lease or a flag of an open file is set. Each of them lasts as long as any
 * descriptor of the open file, so that the daemon must have none: a descriptor of which less than a
 * half was read will not be handed over, and for one that was handed over this waits until the
 * daemon has closed it, 50 ms at most. */
void monarch_keep_descriptor(int fd);

#endif
