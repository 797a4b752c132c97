/* Reads files from a pack: a tar that has files of a source as members, so that one read brings
 * many files. */
#pragma once

#include "copy/job.h"

struct pack;

/* Looks up the order's file in the pack of its source. Sets job->pack, so that the order reads the
 * member, under two conditions: a member has the file's name, size and time of modification, and
 * this user may read the file. Only files of one unit are looked up: larger files gain little. Call
 * this before another thread sees the order. */
void monarch_pack_meet(struct monarch_engine *e, struct job *job);
/* Copies the whole file of an order with job->pack into `buffer`. Returns 0; or -1 if the pack has
 * changed or cannot be read, so that the caller must read the file itself. */
int monarch_pack_read(struct monarch_engine *e, struct job *job, char *buffer);
/* Notes that the order needs its member no longer. May be called repeatedly, and for orders without
 * a pack. */
void monarch_pack_leave(struct job *job);
/* Frees the pack and closes its descriptor. NULL is allowed. */
void monarch_pack_free(struct pack *p);
