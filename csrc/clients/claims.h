/* The claims of programs that read files themselves, as the daemon sees and ends them. */
#pragma once

#include "shared/catalog.h"

/* Returns whether a program is reading the file at the source and will hand its descriptor over. */
int monarch_is_being_read(const struct monarch_clients *m, uint64_t id, uint64_t ino,
                          uint64_t now_ns);
/* Ends the claim of a file whose descriptor was handed over. Call this once that descriptor is
 * closed. */
void monarch_end_claim(struct monarch_clients *m, uint64_t id);
/* Returns whether the daemon must now close a descriptor that was handed over: because its program
 * waits for that, because the claim has expired, or because another claim has replaced it. */
int monarch_is_recalled(const struct monarch_clients *m, uint64_t id, uint64_t now_ns);
