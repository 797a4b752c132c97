/* Where the bytes of a fill come from: a peer, then the source. */
#pragma once

#include "copy/filling.h"

/* Gets the bytes [at, at + n) of one block from a peer, and writes them to the copy. The peers that
 * the order names are asked one after the other. Returns 1, with the checksums of the bytes in
 * *sum. Returns 0 if the bytes must come from the source: the order names no peer, or its peers
 * have failed or are late. */
int monarch_fetch(struct monarch_engine *e, struct fill *f, uint64_t at, uint64_t n, char *buffer,
                  struct block_sum *sum);
/* Returns the peer that gave all bytes of a finished fill; -1 if there is none. That peer has the
 * whole file: otherwise it would not have sent the last block. */
int monarch_giver_of(const struct fill *f);
/* Notes that a source has just answered an open or a read. */
void monarch_note_source(struct monarch_engine *e);
/* Returns a descriptor of the source's file, which is opened at the first call. On failure, returns
 * -1 and sets *status and errno as monarch_open_source does. */
int monarch_source_of(struct monarch_engine *e, struct fill *f, int *status);
