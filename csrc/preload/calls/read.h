/* Serves reads on descriptors of source files whose copies are being filled, or were filled after
 * the open.
 *
 * Bytes that are already in the copy are read from the copy. If the daemon is still copying the
 * bytes, the read waits. In case of doubt, the bytes are read from the source. A read at the
 * descriptor's own offset has two steps. The first step claims a range of the file: it moves the
 * offset by one lseek, which is atomic for all threads and processes that share the offset. The
 * second step reads the claimed range. */
#pragma once

#include "preload/fill/wait.h"

/* Fills in *w (wait.h) for the file of the descriptor `fd`. tracked: the descriptor's word in the
 * table (track.h). Returns 0 if no copy of the file can serve the caller, which must then read the
 * source. */
int monarch_find_file(int fd, uint64_t tracked, struct monarch_wanted *w);
/* Returns 0 if the file has no copy, and no copy was requested. word: the entry's word. If the
 * word's state is ABSENT, this function first counts the w->n bytes that the program wants to read,
 * and requests a copy if the program has wanted enough of the file so far
 * (monarch_request_fill). */
int monarch_is_coming(const struct monarch_wanted *w, uint64_t word);
/* Opens the source's file by its path, for the library's own use. This is needed if another thread
 * has closed the descriptor with which a call began. Returns -1 if the path leads to another file
 * now. The caller closes the new descriptor with monarch_close_unseen, which preserves the
 * process's locks on the file. */
int monarch_open_by_name(const struct monarch_wanted *w);
