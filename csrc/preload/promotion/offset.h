/* The position of a descriptor that several may read from at once: threads, duplicates, processes.
 * What the kernel does for them in a read is done here for a read that a copy serves. */
#ifndef MONARCH_OFFSET_H
#define MONARCH_OFFSET_H

#include <stddef.h>

#include "preload/fill/demand.h"

/* Moves the offset over the next n bytes of the file, as far as that goes, and says which they are:
 * [w->at, w->at + w->n). 0: nothing was moved, because there are none, or because the number may be
 * another file's by now. `tracked` is the descriptor's word in the table. */
int monarch_claim_offset(int fd, uint64_t tracked, struct monarch_wanted *w, size_t n);
/* The last n bytes of what was claimed were not read. Who has closed the number meanwhile does not
 * ask where it was. */
void monarch_give_back_offset(int fd, uint64_t tracked, long n);

#endif
