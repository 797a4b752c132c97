/* Asks the daemon to fill files, and tells the daemon of files that are not in the catalog. */
#pragma once

#include "preload/session/session.h"

/* Sends the daemon the path of a file that is not in the catalog. fd: a descriptor of the file.
 * is_part: 1 if the program has read so little of the file that a copy would not be worth its
 * cost. */
void monarch_tell_unknown(struct session *s, int fd, int is_part);

/* Call this when a program requests `n` bytes of a file without a copy. Adds `n` to the bytes of
 * the file that this process has requested. If the sum is at least the fraction `fill_after` of
 * the file, asks the daemon to fill the file. Returns whether the daemon was asked. */
int monarch_request_fill(struct session *s, const struct monarch_entry *e, uint64_t id, uint64_t n);
