/* Before descriptors are closed, by whatever call: what is known of them goes. */
#ifndef MONARCH_DESCRIPTORS_H
#define MONARCH_DESCRIPTORS_H

#include <stdio.h>

#include "preload/descriptors/track.h"
#include "preload/promotion/companion.h"

static inline void monarch_will_close(int fd) {
    monarch_untrack(fd);
    monarch_companion_close(fd);
}
void monarch_will_close_stream(FILE *stream);

/* A stream takes a tracked descriptor over: its reads are made inside libc, and counted as one of
 * the whole file. */
void monarch_count_stream(int fd);

#endif
