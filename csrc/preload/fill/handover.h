/* Hands over descriptors to the daemon, so that the read of a program is the fill.
 *
 * A program reads a file without a copy at the source, on its own descriptor. Once all of the file
 * was read, the descriptor is handed over to the daemon, which makes the copy from the page cache:
 * the source has seen one open, and every byte once. Losing a handover costs speed only: the daemon
 * then fills the file itself. */
#pragma once

#include <sys/stat.h>

#include "preload/session/session.h"

/* Whether the reads of a file that the catalog does not know, open as `fd`, are to be its fill.
 * Then the descriptor is direct from here on, and the daemon is told of the file when it is handed
 * over or closed. */
int monarch_read_unmet(struct session *s, int fd, const struct stat *st);
/* The functions below that take `tracked`, the descriptor's word, are for words with
 * TRACK_DIRECT. */

/* Called before a read: whether a copy has come from elsewhere. Then the descriptor is direct no
 * more. */
int monarch_direct_is_over(int fd, uint64_t tracked);
/* Called after a read of `n` bytes that ended at the offset `end`; -1: at the descriptor's own
 * offset. */
void monarch_read_direct(int fd, uint64_t tracked, uint64_t n, int64_t end);
/* Hands the descriptor over now, however much of the file was read; is_read: all of it was. */
void monarch_hand_over(int fd, uint64_t tracked, int is_read);
/* Called before the descriptor is closed: hands over a file that was read in part, or by calls that
 * nobody has seen. */
void monarch_close_direct(int fd, uint64_t tracked);

/* Called before a lock, a lease or a flag of an open file is set. Each of them lasts as long as any
 * descriptor of the open file, so the daemon must hold none. A descriptor of which less than half
 * was read will not be handed over. If the descriptor was handed over, this waits until the daemon
 * has closed it, 50 ms at most. */
void monarch_keep_descriptor(int fd);
