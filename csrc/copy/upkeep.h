/* Carries out all orders except fills. They check copies, compare files at the source with their
 * copies' checksums, remove copies, and read copies into the page cache. */
#pragma once

#include "copy/job.h"

/* Carries out an order that is not a fill, and stores the result in job->result. `buffer` has
 * MONARCH_CHUNK bytes. A PAGE_IN may need several calls, because each call reads one part of the
 * copy. Its status stays ABANDONED until the last part is read. */
void monarch_do_upkeep(struct monarch_engine *e, struct job *job, char *buffer);
