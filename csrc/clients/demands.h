/* Answers the demands of readers that wait for parts of files, and checks which files are
 * requested. */
#pragma once

#include "shared/catalog.h"

/* Returns whether a client has requested the file, and the daemon has not yet read this request
 * from the bitmap. If so, the state ABSENT (no copy) may still change, because the daemon has not
 * decided yet whether to fill the file. */
int monarch_is_requested(const struct monarch_clients *m, uint64_t id);
/* Answers all demands for units [first, first + count) of the entry's file. A demand is a reader's
 * message that it waits for a unit. An answer wakes the reader, which then checks which units can
 * be read. */
void monarch_answer(struct monarch_clients *m, uint64_t entry, uint64_t first, uint64_t count);
