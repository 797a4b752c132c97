/* Reads files from a pack. A pack is a tar whose members are files of a source, so one read of the
 * tar can fetch many files. */
#pragma once

#include "copy/job.h"

struct pack;

/* Looks up the order's file in its source's pack. Sets job->pack if a member has the file's name,
 * size and time of modification, and the session's user may read the file. The fill then reads this
 * member instead of the file. Only files of one unit are looked up, because larger files gain
 * little. Call this before another thread can see the order. */
void monarch_pack_meet(struct monarch_engine *e, struct job *job);
/* Reads the order's whole file from job->pack into `buffer`. Returns 0. Returns -1 if the pack has
 * changed or cannot be read; the caller must then read the file itself. */
int monarch_pack_read(struct monarch_engine *e, struct job *job, char *buffer);
/* Call this when the order no longer needs its member of the pack. If the order has no pack (any
 * more), does nothing. */
void monarch_pack_leave(struct job *job);
/* Frees the pack and closes its descriptor. NULL is allowed. */
void monarch_pack_free(struct pack *p);
