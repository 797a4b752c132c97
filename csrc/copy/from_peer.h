/* Gets the bytes of a fill from peers. Call these functions only for a fill whose order names a
 * peer (f->peers). */
#pragma once

#include "copy/filling.h"

/* Gets the bytes [at, at + n) from a peer and writes them to the copy. The bytes must lie in one
 * block. Asks the order's peers one after the other. On success, returns 1 and sets *sum to the
 * checksums of the bytes. Returns 0 if peers failed or are late; the caller must then read the
 * bytes from the source. */
int monarch_fetch(struct monarch_engine *e, struct fill *f, uint64_t at, uint64_t n, char *buffer,
                  struct block_sum *sum);
/* Returns the number of the peer that sent all bytes of a finished fill; -1 if no single peer did.
 * This peer has the whole file, because it would not have sent the last block otherwise. */
int monarch_giver_of(const struct fill *f);
