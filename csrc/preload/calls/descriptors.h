/* Hooks for calls that close descriptors. Before a descriptor is closed, the library stops tracking
 * it and closes its backing descriptor. */
#pragma once

#include <stdio.h>

#include "preload/descriptors/track.h"
#include "preload/promotion/backing.h"

static inline void monarch_will_close(int fd) {
    monarch_untrack(fd);
    monarch_backing_close(fd);
}
void monarch_will_close_stream(FILE *stream);

/* Call this when a stream takes over a tracked descriptor (track.h). The library does not see the
 * stream's reads. So the whole file is counted as read at the source. */
void monarch_count_stream(int fd);

/* Returns whether monarch_lock handles this command of fcntl: a lock command, or F_GETLEASE. */
int monarch_is_lock(int command);
int monarch_lock(int fd, int command, void *arg);
