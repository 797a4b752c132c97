/* Requests to the daemon: to fill a file, or to look at one that the catalog does not know. */
#pragma once

#include "preload/session/session.h"

/* Tells the daemon of a file that the catalog does not know, open as `fd`. `is_part`: too little of
 * it was read to be worth a copy. */
void monarch_tell_unknown(struct session *s, int fd, int is_part);

/* Called when `n` bytes of a file without a copy are asked for. If that, with what this process has
 * asked for before, is reason enough to fill the file, tells the daemon. Returns whether it is. */
int monarch_request_fill(struct session *s, const struct monarch_entry *e, uint64_t id, uint64_t n);
