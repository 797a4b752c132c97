/* Packs: a tar that has the files of a source as members. One read of it brings many files. */
#pragma once

#include "copy/job.h"

struct pack;

/* Looks the order's file up in the pack of its source. If a member has the file's name, size and
 * time of modification, and this user may read the file, the order is noted to read that member
 * (job->pack). Only files of one unit are looked up: others gain little. Call before another thread
 * sees the order. */
void monarch_pack_meet(struct monarch_engine *e, struct job *job);
/* Gets the file of a noted order, whole, into `buffer`. Returns 0; or -1 if the file must be read
 * itself, because the pack has changed or cannot be read. */
int monarch_pack_read(struct monarch_engine *e, struct job *job, char *buffer);
/* The order does not need its member any more. May be called again, and for any order. */
void monarch_pack_leave(struct job *job);
/* Frees the pack and closes its descriptor. NULL is allowed. */
void monarch_pack_free(struct pack *p);
