/* Reads files from a pack. A pack is a tar whose members are files of a source, so one read of the
 * tar can fetch many files. */
#pragma once

#include "copy/job.h"

struct pack;

/* Looks up the order's file in the pack of its source. If a member has the file's name, size and
 * time of modification, and the session's user is permitted to read the file, sets job->pack. The
 * fill then reads this member instead of the file. Only files of one unit are looked up, because
 * larger files gain little. Call this before another thread can see the order. */
void monarch_pack_meet(struct monarch_engine *e, struct job *job);
/* Reads the whole file of the order from job->pack into `buffer`. Returns 0. Returns -1 if the pack
 * has changed or cannot be read; the caller must then read the file itself. */
int monarch_pack_read(struct monarch_engine *e, struct job *job, char *buffer);
/* Call this when the order no longer needs its member of the pack. A second call does nothing, and
 * neither does a call for an order without a pack. */
void monarch_pack_leave(struct job *job);
/* Frees the pack and closes its descriptor. NULL is allowed. */
void monarch_pack_free(struct pack *p);
