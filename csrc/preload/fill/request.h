/* Requests to the daemon: that it fills a file, or looks at one that the catalog does not know. */
#ifndef MONARCH_REQUEST_H
#define MONARCH_REQUEST_H

#include "preload/session/session.h"

/* The daemon hears of a file that the catalog does not know, open as `fd`. `is_part`: less of it
 * was read than is worth a copy. */
void monarch_tell_unknown(struct session *s, int fd, int is_part);

/* `n` bytes of a file without a copy are asked for: whether that is reason enough, with what this
 * process has asked for before, to fill it. Then the daemon hears of it. */
int monarch_request_fill(struct session *s, const struct monarch_entry *e, uint64_t id, uint64_t n);

#endif
