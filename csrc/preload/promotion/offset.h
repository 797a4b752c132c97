/* Moves the offset of a descriptor from which several threads or processes may read at once.
 *
 * The kernel moves the offset within a read; for a read that a copy serves, it is done here. */
#pragma once

#include <stddef.h>

#include "preload/fill/demand.h"

/* Moves the offset over the next n bytes of the file, as far as there are some, and returns them as
 * [w->at, w->at + w->n). 0: nothing was moved, because there are none, or because the number may be
 * another file's by now. `tracked` is the descriptor's word in the table. */
int monarch_claim_offset(int fd, uint64_t tracked, struct monarch_wanted *w, size_t n);
/* Gives back the last n bytes that were claimed and not read. If the number was closed meanwhile,
 * nobody asks for its offset. */
void monarch_give_back_offset(int fd, uint64_t tracked, long n);
