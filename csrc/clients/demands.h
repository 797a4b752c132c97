/* Answers the demands of readers that wait for parts of files. Also reports which files clients
 * have requested. */
#pragma once

#include "shared/catalog.h"

/* Returns whether a client has requested the file and the daemon has not yet taken the request from
 * the bitmap. If so, the daemon will soon order a fill of the file, and the state ABSENT will
 * end. */
int monarch_is_requested(const struct monarch_clients *m, uint64_t id);
/* Answers the demands for units [first, first + count) of an entry. The readers that wait for these
 * units wake, and check again which units can be read. */
void monarch_answer(struct monarch_clients *m, uint64_t entry, uint64_t first, uint64_t count);
