/* Hooks for calls that close descriptors: what is known of a descriptor is forgotten first. */
#pragma once

#include <stdio.h>

#include "preload/descriptors/track.h"
#include "preload/promotion/backing.h"

static inline void monarch_will_close(int fd) {
    monarch_untrack(fd);
    monarch_backing_close(fd);
}
void monarch_will_close_stream(FILE *stream);

/* Called when a stream takes over a tracked descriptor. The stream's reads happen inside libc, and
 * are counted as one read of the whole file. */
void monarch_count_stream(int fd);

/* Whether `command` is a lock command of fcntl, or F_GETLEASE. monarch_lock carries out such a
 * call. */
int monarch_is_lock(int command);
int monarch_lock(int fd, int command, void *arg);
