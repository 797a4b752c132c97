/* Gets the bytes of a fill from peers. Call these functions only for a fill whose order names a
 * peer (f->peers). */
#pragma once

#include "copy/filling.h"

/* Gets the bytes [at, at + n), which lie in one block, from a peer, and writes them to the copy.
 * Asks the order's peers one after the other. On success, returns 1 and sets *sum to the checksums
 * of the bytes. Returns 0 if the caller must get the bytes from the source instead, because peers
 * have failed or are late. */
int monarch_fetch(struct monarch_engine *e, struct fill *f, uint64_t at, uint64_t n, char *buffer,
                  struct block_sum *sum);
/* Returns the number of the peer that sent all bytes of a finished fill; -1 if no single peer did.
 * That peer has the whole file, because otherwise it would not have sent the last block. */
int monarch_giver_of(const struct fill *f);
