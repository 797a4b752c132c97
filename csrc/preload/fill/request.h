/* Requests copies of files from the daemon, and tells the daemon about files that the catalog does
 * not know. */
#pragma once

#include "preload/session/session.h"

/* Reports to the daemon a file that the catalog does not know. The program has the file open as
 * `fd`. is_part: 1 if the program has read some of the file, but too little for the file to be
 * worth a copy. */
void monarch_tell_unknown(struct session *s, int fd, int is_part);

/* Call this when a program requests `n` bytes of a file without a copy. Adds up what this process
 * has requested of the file. Once the sum reaches the share that `fill_after` names, asks the
 * daemon to fill the file. Returns whether the daemon was asked. */
int monarch_request_fill(struct session *s, const struct monarch_entry *e, uint64_t id, uint64_t n);
