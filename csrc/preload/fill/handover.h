/* Hands over descriptors to the daemon, so that the reads of a program are the fill.
 *
 * A program reads a file that has no copy at the source, on its own descriptor. Once it has read
 * the whole file, the descriptor is handed over to the daemon, which makes the copy from the page
 * cache. So the source sees one open, and gives each byte once. Losing a handover costs speed only:
 * the daemon then fills the file itself. */
#pragma once

#include <sys/stat.h>

#include "preload/session/session.h"

/* Called for a file that is open as `fd` and that the catalog does not know. Returns whether the
 * program's reads are to be the file's fill. If so, the descriptor is direct (TRACK_DIRECT) from
 * here on, and the daemon is told of the file when the descriptor is handed over or closed. */
int monarch_read_unmet(struct session *s, int fd, const struct stat *st);
/* The functions below that take `tracked`, the descriptor's word, are for words with
 * TRACK_DIRECT. */

/* Called before a read. Returns whether the file has got a copy otherwise than by this descriptor's
 * reads. If so, the descriptor is no longer direct. */
int monarch_direct_is_over(int fd, uint64_t tracked);
/* Called after a read of `n` bytes that ended at the offset `end` (-1: at the descriptor's own
 * offset). */
void monarch_read_direct(int fd, uint64_t tracked, uint64_t n, int64_t end);
/* Hands the descriptor over now, however much of the file was read. `is_read` says whether all of
 * it was. */
void monarch_hand_over(int fd, uint64_t tracked, int is_read);
/* Called before the descriptor is closed: hands it over if at least half of the file was read.
 * Otherwise tells the daemon of the file, if the catalog does not know it, or asks for a fill, if
 * no read was seen. */
void monarch_close_direct(int fd, uint64_t tracked);

/* Called before a lock, a lease or a flag of an open file is set. Each of them lasts as long as any
 * descriptor of the open file, so the daemon must hold none. If less than half of the file was
 * read, the descriptor will not be handed over. If it was handed over already, this function waits
 * until the daemon has closed it, for 50 ms at most. */
void monarch_keep_descriptor(int fd);
