/* Serves reads on descriptors of source files whose copies are being filled, or were filled after
 * the open.
 *
 * Bytes that are already in the copy are read from the copy. For bytes that are being filled, the
 * read waits. In case of doubt, the bytes are read from the source. A read at the descriptor's own
 * offset has two steps. The first step claims a range: one lseek moves the offset, atomically for
 * all threads and processes that share the offset. The second step reads the claimed range. */
#pragma once

#include "preload/fill/wait.h"

/* Finds the file of a tracked descriptor, and fills in *w for the file. Returns 0 if a copy of the
 * file cannot serve the call. */
int monarch_find_file(int fd, uint64_t tracked, struct monarch_wanted *w);
/* Returns whether the file has a copy, or will get one. If the file is ABSENT, asks the daemon for
 * a fill. */
int monarch_is_coming(const struct monarch_wanted *w, uint64_t word);
/* Opens the source's file by its name, for the library's own use. This is needed if another thread
 * has closed the descriptor with which a call began. Returns -1 if the name leads to another file
 * now. The caller closes the descriptor with monarch_close_unseen. */
int monarch_open_by_name(const struct monarch_wanted *w);
