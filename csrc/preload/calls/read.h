/* Serves reads on descriptors of source files whose copies are being filled, or were filled after
 * the open.
 *
 * Bytes that are already in the copy are read from the copy. If the daemon is still copying the
 * bytes, the read waits. In case of doubt, the bytes are read from the source.
 *
 * A read at the descriptor's own offset has two steps. The first step claims a range of the file:
 * one lseek moves the offset past the range. The lseek is atomic, so no other thread or process
 * that shares the offset claims the same bytes. The second step reads the claimed range. */
#pragma once

#include "preload/fill/wait.h"

/* Fills in *w (wait.h) for the file of the descriptor `fd`. tracked: the descriptor's word in the
 * table (track.h). Returns 0 if the caller must read the source, because no copy can serve it. */
int monarch_find_file(int fd, uint64_t tracked, struct monarch_wanted *w);
/* Returns 0 if the file has no copy, and no copy was requested. word: the entry's word. In the
 * state ABSENT, first counts the w->n bytes that the program wants to read. If the program has
 * wanted enough of the file so far, also requests a copy (monarch_request_fill). */
int monarch_is_coming(const struct monarch_wanted *w, uint64_t word);
/* Opens the source's file by its path. This is needed if another thread has closed the descriptor
 * with which a call began. Returns a negative number if the open fails, or if the path leads to
 * another file now. Close the new descriptor by monarch_close_unseen, which preserves the process's
 * locks on the file. */
int monarch_open_by_name(const struct monarch_wanted *w);
