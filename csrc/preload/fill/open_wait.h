/* Makes an open wait for an unfinished copy, so that the source's file need not be opened. */
#pragma once

#include "preload/fill/serve.h"

/* Call this if the library does not see the reads that follow the open, as with fopen. Waits up to
 * a second until the file's copy is complete. Returns whether it is complete. If so, stores the
 * copy's path in o->copy. */
int monarch_wait_for_copy(struct session *s, struct monarch_opening *o);

/* Call this if the library sees the reads that follow the open. Waits for the copy of a small
 * file, which saves the source an open and a read. Waits only if the fill is queued or under way,
 * or if this node gets the file from another node. Moves a queued fill to the front of the queue.
 * Returns whether the copy exists now. If so, sets *o as monarch_look_up does. Do not call this
 * for a claimed file: its copy is made only after the program itself has read the file.
 *
 * The wait lasts at most a second if the file comes from another node, or if programs may read the
 * file directly (monarch_may_read_direct). For any other file, the limit is 1.2 times the mean
 * time that this process needs for an open and a read at the source. */
int monarch_wait_at_open(struct session *s, int dir, const char *path, int flags,
                         struct monarch_opening *o);
