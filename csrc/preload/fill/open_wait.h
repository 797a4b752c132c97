/* Makes an open wait for an unfinished copy, so that the source's file need not be opened. */
#pragma once

#include "preload/fill/serve.h"

/* Waits up to a second for a copy that does not exist yet. This function is for opens such as
 * fopen, after which the library does not see the reads. Returns whether the copy exists now. If it
 * does, o->copy is the copy's path. */
int monarch_wait_for_copy(struct session *s, struct monarch_opening *o);

/* Waits for the copy of a small file if its fill is queued or under way, or if this node fills the
 * file from another node. A queued fill moves to the front of the queue. The wait saves the source
 * an open and a read. This function is for opens after which the library sees the reads. Do not
 * call it for a claimed file, because the copy of such a file is made from the program's own reads.
 * Returns whether the copy exists now. If it does, fills in *o like monarch_look_up.
 *
 * The wait lasts at most a second if the file comes from another node, or if programs may read the
 * file directly (monarch_may_read_direct). For any other file, the limit is 1.2 times the mean time
 * that this process needs for an open and a read at the source. */
int monarch_wait_at_open(struct session *s, int dir, const char *path, int flags,
                         struct monarch_opening *o);
