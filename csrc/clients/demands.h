/* Answers the demands of readers that wait for parts of files, and checks which files are
 * requested. */
#pragma once

#include "shared/catalog.h"

/* Returns whether a client has requested the file, and the daemon has not yet taken this request
 * from the bitmap. If so, the daemon has yet to decide whether it fills the file, so the state
 * ABSENT is not final. */
int monarch_is_requested(const struct monarch_clients *m, uint64_t id);
/* Answers all demands for units [first, first + count) of the entry's file. This wakes the readers
 * that wait for these units. They then check which units can be read. */
void monarch_answer(struct monarch_clients *m, uint64_t entry, uint64_t first, uint64_t count);
