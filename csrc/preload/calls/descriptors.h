/* Hooks for calls that close descriptors: the library forgets what it knows of a descriptor before
 * it is closed. */
#pragma once

#include <stdio.h>

#include "preload/descriptors/track.h"
#include "preload/promotion/backing.h"

static inline void monarch_will_close(int fd) {
    monarch_untrack(fd);
    monarch_backing_close(fd);
}
void monarch_will_close_stream(FILE *stream);

/* Call this when a stream takes over a tracked descriptor. The stream reads inside libc, unseen by
 * the library, so it counts as one read of the whole file. */
void monarch_count_stream(int fd);

/* Returns whether `command` is a lock command of fcntl, or F_GETLEASE. monarch_lock handles such a
 * call. */
int monarch_is_lock(int command);
int monarch_lock(int fd, int command, void *arg);
