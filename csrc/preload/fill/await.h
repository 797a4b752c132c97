/* Lets opens wait for a copy in the making instead of asking the source. */
#pragma once

#include "preload/fill/serve.h"

/* For an open whose reads the library will not see (of a stream): waits for a copy that is not
 * there yet, for a second at most. Returns whether the copy is there now; then o->copy is the path
 * to open. */
int monarch_wait_for_copy(struct session *s, struct monarch_opening *o);

/* For an open whose reads the library sees: waits for the copy of a small file whose fill is
 * ordered or under way, and so spares the source an open and a read. If the program's reads cannot
 * be the file's fill, the wait is at most 1.2 times the mean time of an open and a read of this
 * process at the source, and a fill that waits for its turn gets it now. Returns whether the copy
 * is there; then `o` is as after monarch_look_up. */
int monarch_wait_at_open(struct session *s, int dir, const char *path, int flags,
                         struct monarch_opening *o);
