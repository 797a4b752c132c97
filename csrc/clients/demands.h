/* The demands of readers that wait for parts of a file, and the files that clients have requested.
 */
#pragma once

#include "shared/catalog.h"

/* Returns whether a client has requested the file, and the request was not taken from the bitmap
 * yet. If so, the file will not stay ABSENT: a fill is about to be ordered. */
int monarch_is_requested(const struct monarch_clients *m, uint64_t id);
/* Makes the readers that wait for units [first, first + count) of an entry look again. */
void monarch_answer(struct monarch_clients *m, uint64_t entry, uint64_t first, uint64_t count);
