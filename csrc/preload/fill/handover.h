/* Hands descriptors of a program's files over to the daemon, which makes copies from the page
 * cache.
 *
 * If a file has no copy, a program reads the file at the source, through its own descriptor. After
 * the program has read the whole file, the library sends this descriptor to the daemon. The daemon
 * makes the copy from the pages that the program's reads have left in the page cache. So the
 * source handles only one open, and sends each byte only once. If a handover is lost, the daemon
 * itself reads the file at the source. */
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include "preload/session/session.h"

/* Returns whether programs may read the file directly. A direct read goes to the source, and the
 * daemon later makes the copy from the page cache. The result is 0 in any of these cases: the file
 * is empty or too large; its source is fast (monarch_is_fast); the kernel does not cache the
 * source's pages; this process may have a lock on the file; or several nodes share the files, and
 * the daemon has not decided that this node must read this file from the source. */
int monarch_may_read_direct(const struct session *s, const struct monarch_entry *e, uint64_t id);
/* Returns whether a program that opens the file now should read the file directly. The result is 1
 * if all of these are true: monarch_may_read_direct returns 1; the file has no copy; no thread of
 * the daemon has begun to fill the copy (the fill may be queued); and the daemon has read all
 * requests for the copy. word: the entry's word. */
int monarch_is_read_direct(struct session *s, const struct monarch_entry *e, uint64_t id,
                           uint64_t word);
/* Call this if the library cannot follow the program's reads of a claimed file. Because of the
 * claim, the daemon leaves the file to the program's own reads. Ends the claim, and asks the
 * daemon to fill the file. */
void monarch_fill_instead(struct session *s, const struct monarch_entry *e, uint64_t id);

/* Call this after a program has opened a file that is not in the catalog. Returns whether the
 * program will read the file directly. If so, sets TRACK_DIRECT for the descriptor `fd`, and the
 * daemon learns of the file when `fd` is handed over or closed. */
int monarch_read_unmet(struct session *s, int fd, const struct stat *st);
/* Call this after a read of `n` bytes from any descriptor. Returns `n`. If the descriptor is
 * tracked, counts the bytes. If TRACK_DIRECT is set, and the program has now read the whole file,
 * hands the descriptor over. Does not count reads of an untracked descriptor: its file is in no
 * source, or the open has already counted the whole file. at: the offset where the read began, or
 * -1 for a read at the descriptor's own offset. */
ssize_t monarch_note_read(int fd, ssize_t n, off_t at);
/* The next three functions take `tracked`, the descriptor's word (track.h), in which TRACK_DIRECT
 * is set. */

/* Call this before a read of the descriptor. Returns whether the file has a copy by now, for
 * example because another program has read the file. If so, clears TRACK_DIRECT, so that the copy
 * can serve this read and all later reads. */
int monarch_direct_is_over(int fd, uint64_t tracked);
/* Hands the descriptor over now, even if only a part of the file was read. If the file has no
 * entry, and the sources are as fast as the page cache, sends the daemon only the file's path.
 * is_read: 1 if the whole file was read. */
void monarch_hand_over(int fd, uint64_t tracked, int is_read);
/* Call this before the descriptor is closed. If at least half of the file was read, hands the
 * descriptor over. If less was read of a file that is not in the catalog, sends the daemon the
 * file's path. If the library has seen no read of a file in the catalog, asks the daemon to fill
 * the file. */
void monarch_close_direct(int fd, uint64_t tracked);

/* Call this before the program sets a lock, a lease or a flag on an open file. All three last
 * until the last descriptor of the open file is closed, so the daemon must hold no descriptor of
 * this open file. If less than half of the file was read, prevents a later handover. If the
 * descriptor was handed over already, waits up to 50 ms until the daemon has closed the descriptor
 * that it received. */
void monarch_keep_descriptor(int fd);
