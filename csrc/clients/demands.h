/* Answers the demands of readers that wait for parts of files, and checks which files are
 * requested. */
#pragma once

#include "shared/catalog.h"

/* Returns whether a client has requested the file, and the daemon has not yet taken this request
 * from the bitmap. If so, the daemon still has to decide whether to fill the file. So the state
 * ABSENT (no copy) may still change. */
int monarch_is_requested(const struct monarch_clients *m, uint64_t id);
/* Answers all demands for units [first, first + count) of the entry's file. An answer wakes the
 * reader that has made the demand. The reader then checks which units can be read. */
void monarch_answer(struct monarch_clients *m, uint64_t entry, uint64_t first, uint64_t count);
