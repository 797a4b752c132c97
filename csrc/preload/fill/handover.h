/* Hands descriptors of a program's files over to the daemon, which makes copies from the page
 * cache.
 *
 * If a file has no copy, a program reads the file at the source, through its own descriptor. After
 * the program has read the whole file, the library hands the descriptor over: it sends the
 * descriptor to the daemon. The daemon then makes the copy from the page cache. So the source
 * handles only one open, and sends each byte only once. If a handover is lost, the daemon itself
 * reads the file at the source. */
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include "preload/session/session.h"

/* Returns whether programs may read the file directly. A direct read goes to the source, and the
 * daemon later makes the copy from the pages that the read has left in the page cache. The result
 * is 0 in any of these cases: the file is empty or too large; its source is fast (monarch_is_fast);
 * the kernel does not cache the source's pages; this process may have a lock on the file; or
 * several nodes share the files, and the daemon has not decided that this node is the one that must
 * read this file from the source. */
int monarch_may_read_direct(const struct session *s, const struct monarch_entry *e, uint64_t id);
/* Returns whether a program that opens the file now should read the file directly. The result is 1
 * if all of these are true: the file may be read directly (monarch_may_read_direct); it has no
 * copy; no thread of the daemon has begun to fill the copy (the fill may be queued); and the daemon
 * has already read all requests for the copy. word: the entry's word. */
int monarch_is_read_direct(struct session *s, const struct monarch_entry *e, uint64_t id,
                           uint64_t word);
/* Asks the daemon to fill the file, and ends the file's claim, which announces direct reads to the
 * daemon. Call this if the library cannot follow the program's reads of the file. */
void monarch_fill_instead(struct session *s, const struct monarch_entry *e, uint64_t id);

/* Call this after a program has opened a file that is not in the catalog. Returns whether the
 * program will read the file directly. If so, sets TRACK_DIRECT for the descriptor `fd`. The daemon
 * then learns of the file when the descriptor is handed over or closed. */
int monarch_read_unmet(struct session *s, int fd, const struct stat *st);
/* Call this after a read of `n` bytes from any descriptor. Returns `n`. If the descriptor is
 * tracked, counts the bytes. If TRACK_DIRECT is set for the descriptor, and the program has now
 * read the whole file, hands the descriptor over. Reads of an untracked descriptor are not counted:
 * either its file is not in a source, or the open has already counted the whole file. at: the
 * offset where the read began, or -1 for a read at the descriptor's own offset. */
ssize_t monarch_note_read(int fd, ssize_t n, off_t at);
/* The next three functions take `tracked`, the descriptor's word (track.h), in which TRACK_DIRECT
 * is set. */

/* Call this before a read of the descriptor. Returns whether the file has a copy by now. For
 * example, the daemon may have made a copy after another program has read the file. If there is a
 * copy, clears TRACK_DIRECT, so that the copy can serve this read and all later reads. */
int monarch_direct_is_over(int fd, uint64_t tracked);
/* Hands the descriptor over now, even if only a part of the file was read. is_read: 1 if the whole
 * file was read. If the file has no entry and the sources are as fast as the page cache, sends only
 * the file's path to the daemon. */
void monarch_hand_over(int fd, uint64_t tracked, int is_read);
/* Call this before the descriptor is closed. If at least half of the file was read, hands the
 * descriptor over. Otherwise, if the file is not in the catalog, sends the daemon the file's path.
 * If the file is in the catalog, but the library has seen no read of it, asks the daemon to fill
 * the file. */
void monarch_close_direct(int fd, uint64_t tracked);

/* Call this before the program sets a lock, a lease or a flag on an open file. A lock, a lease or a
 * flag lasts until the last descriptor of the open file is closed. So the daemon must not hold a
 * descriptor of the same open file. If less than half of the file was read, this function makes
 * sure that the descriptor is not handed over later. If the descriptor was handed over already,
 * this function waits up to 50 ms until the daemon has closed the descriptor that it received. */
void monarch_keep_descriptor(int fd);
