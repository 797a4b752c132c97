/* Carries out all orders except fills. These orders check copies, compare files at the source with
 * the checksums of their copies, drop copies, and read copies into the page cache. */
#pragma once

#include "copy/job.h"

/* Carries out an order other than a fill, and stores the result in job->result. `buffer` has
 * MONARCH_CHUNK bytes. A PAGE_IN needs several calls. Each call reads one part, and every call but
 * the last one leaves the status ABANDONED. */
void monarch_do_upkeep(struct monarch_engine *e, struct job *job, char *buffer);
