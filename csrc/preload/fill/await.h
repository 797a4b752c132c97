/* Opens that wait for a copy in the making, in place of the source. */
#ifndef MONARCH_AWAIT_H
#define MONARCH_AWAIT_H

#include "preload/lookup/serve.h"

/* For an open whose reads are not seen (streams): waits a little for a copy that is not there yet.
 * Whether it is there now; then `copy` is the path to open. */
int monarch_wait_for_copy(struct session *s, struct monarch_opening *o);

/* For an open whose reads are seen. Waits for the copy of a small file that the daemon is filling
 * at this moment, and so spares the source an open and a read. Where the reads of the file cannot
 * be its fill, the wait is no longer than 1.2 times what this process takes for both, and a fill
 * that waits for its turn has it from now on. Whether the copy is there now; then `o` is as after
 * monarch_look_up. */
int monarch_wait_at_open(struct session *s, int dir, const char *path, int flags,
                         struct monarch_opening *o);

/* Whether the sources have given this process most of its last files as soon as the page cache
 * does; and as soon as a local disk does, but later than that. Now and then they are 0
 * nevertheless, so that somebody times the reads. */
int monarch_source_is_at_hand(void);
int monarch_source_is_near(void);

/* An open, or a read, of a source's file that began at since_ns (sys_now_ns) has ended. */
void monarch_note_source_open(uint64_t since_ns);
void monarch_note_source_read(uint64_t since_ns);

#endif
