/* The claims of programs that read files themselves, as the daemon sees and ends them. */
#pragma once

#include "shared/catalog.h"

/* Returns whether a program is reading the file at the source and will hand its descriptor over. */
int monarch_is_being_read(const struct monarch_clients *m, uint64_t id, uint64_t ino,
                          uint64_t now_ns);
/* Ends the claim of a file whose descriptor was handed over. Call this once that descriptor is
 * closed. */
void monarch_end_claim(struct monarch_clients *m, uint64_t id);
/* Returns whether a descriptor that was handed over must be closed now, because its program waits
 * for that or the claim has expired. */
int monarch_is_recalled(const struct monarch_clients *m, uint64_t id, uint64_t now_ns);
