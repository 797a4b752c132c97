/* Hands descriptors over to the daemon, so that a program's own reads serve as the fill.
 *
 * A program reads a file without a copy at the source, through its own descriptor. After the
 * program has read the whole file, the library hands the descriptor over to the daemon, which makes
 * the copy from the page cache. So the source handles only one open, and sends each byte only once.
 * If a handover is lost, the daemon itself reads the file at the source. */
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include "preload/session/session.h"

/* Returns whether a program's reads of the file can serve as the file's fill. The result is 0 in
 * any of these cases: the file is empty or too large; its source is fast (monarch_is_fast); the
 * kernel keeps no pages of the source; a lock on the file was seen; or the nodes share the files,
 * and the daemon has not decided that this node reads this file from the source. */
int monarch_may_read_direct(const struct session *s, const struct monarch_entry *e, uint64_t id);
/* Returns whether a program that opens the file now is to fill the file by its own reads. All of
 * this must be true: the reads can serve as the fill (monarch_may_read_direct); the file has no
 * copy; no fill of the file has begun; and no program has requested a fill since the daemon last
 * collected the requests. A fill that the daemon's policy has ordered counts as begun only when a
 * thread works on it. word: the entry's word. */
int monarch_is_read_direct(struct session *s, const struct monarch_entry *e, uint64_t id,
                           uint64_t word);
/* Ends the claim of a file, and requests a fill from the daemon. Call this if the library cannot
 * follow the program's reads of the file. */
void monarch_fill_instead(struct session *s, const struct monarch_entry *e, uint64_t id);

/* Call this for a file that is open as `fd` and that the catalog does not know. Returns whether the
 * program's reads will serve as the file's fill. If so, the descriptor is direct (TRACK_DIRECT)
 * from then on, and the daemon learns of the file when the descriptor is handed over or closed. */
int monarch_read_unmet(struct session *s, int fd, const struct stat *st);
/* Call this after a read of `n` bytes from any descriptor; returns n. If the descriptor is tracked,
 * counts the bytes. If it is also direct and the program has now read the whole file, hands the
 * descriptor over. A descriptor that is not tracked needs no count here: either it does not refer
 * to a source's file, or the whole file was counted when it was opened. at: the offset where the
 * read began, or -1 for a read at the descriptor's own offset. */
ssize_t monarch_note_read(int fd, ssize_t n, off_t at);
/* The next three functions take `tracked`, the descriptor's word (track.h), in which TRACK_DIRECT
 * is set. */

/* Call this before a read of a direct descriptor. Returns whether the file has a copy by now: the
 * file may have been filled in another way than from this descriptor. If there is a copy, ends the
 * descriptor's direct reads, so that the copy can serve this read and all later ones. */
int monarch_direct_is_over(int fd, uint64_t tracked);
/* Hands the descriptor over now, however much of the file was read. is_read: whether the whole file
 * was read. If the file has no entry and the sources are as fast as the page cache, sends the
 * daemon only the file's path. */
void monarch_hand_over(int fd, uint64_t tracked, int is_read);
/* Call this before the descriptor is closed. If at least half of the file was read, hands the
 * descriptor over. If less was read, and the catalog does not know the file, sends the daemon the
 * file's path. If the catalog knows the file, but the library has seen no read of it, requests a
 * fill. */
void monarch_close_direct(int fd, uint64_t tracked);

/* Call this before a lock, a lease or a flag is set on an open file. The lock, lease or flag lasts
 * until the last descriptor of the open file is closed, so the daemon must not keep a descriptor of
 * this open file. If less than half of the file was read, the descriptor will not be handed over.
 * If the descriptor was handed over already, waits up to 50 ms until the daemon has closed its own
 * descriptor. */
void monarch_keep_descriptor(int fd);
