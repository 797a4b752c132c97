/* Carries out all orders except fills. Such orders check copies, compare files at the source with
 * the checksums of their copies, remove copies, and read copies into the page cache. */
#pragma once

#include "copy/job.h"

/* Carries out an order that is not a fill, and stores the result in job->result. `buffer` has
 * MONARCH_CHUNK bytes. A PAGE_IN may need several calls, because each call reads one part of the
 * copy. Until the last part was read, the status stays ABANDONED. */
void monarch_do_upkeep(struct monarch_engine *e, struct job *job, char *buffer);
