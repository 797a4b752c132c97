/* Claims, as the daemon sees and ends them. A program claims a file that it reads itself at the
 * source. */
#pragma once

#include "shared/catalog.h"

/* Returns whether a program is reading the file at the source and will hand its descriptor over. */
int monarch_is_being_read(const struct monarch_clients *m, uint64_t id, uint64_t ino,
                          uint64_t now_ns);
/* Ends the claim of a file whose descriptor was handed over. Call this once that descriptor is
 * closed. */
void monarch_end_claim(struct monarch_clients *m, uint64_t id);
/* Returns whether the daemon must now close a descriptor that was handed over. There are three
 * reasons: the program waits for the close, the claim has expired, or another claim has replaced
 * the claim. */
int monarch_is_recalled(const struct monarch_clients *m, uint64_t id, uint64_t now_ns);
