/* Reads files from a pack: a tar with the files of a source, of which one read brings many. */
#pragma once

#include "copy/job.h"

struct pack;

/* Looks the order's file up in the pack of its source. If a member has the file's name, size and
 * time of modification, and this user may read the file, the order is noted to read that member
 * (job->pack). Only files of one unit are looked up: others gain little. Call before another thread
 * sees the order. */
void monarch_pack_meet(struct monarch_engine *e, struct job *job);
/* Copies the whole file of an order with job->pack into `buffer`. Returns 0; or -1 if the pack has
 * changed or cannot be read, so that the caller must read the file itself. */
int monarch_pack_read(struct monarch_engine *e, struct job *job, char *buffer);
/* Gives up the order's member. It may be called again, and for orders without a pack. */
void monarch_pack_leave(struct job *job);
/* Frees the pack and closes its descriptor. NULL is allowed. */
void monarch_pack_free(struct pack *p);
