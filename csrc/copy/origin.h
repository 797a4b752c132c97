/* Where the bytes of a fill come from: a peer, then the source. */
#pragma once

#include "copy/filling.h"

/* Gets the bytes [at, at + n) of one block from the peer that the order names and writes them to
 * the copy. Returns 1, with the checksums of the bytes in *sum; or 0 when the bytes have to come
 * from the source: the order names no peer, or its peers have failed or are late. */
int monarch_fetch(struct monarch_engine *e, struct fill *f, uint64_t at, uint64_t n, char *buffer,
                  struct block_sum *sum);
/* Returns the peer that gave all bytes of a fill that is over; -1 if there is none. That peer has
 * the file whole, because a peer sends the last block only then. */
int monarch_giver_of(const struct fill *f);
/* Notes that a source has returned data just now. */
void monarch_note_source(struct monarch_engine *e);
/* Returns the source's file, which is opened when it is first needed. On failure, returns -1 and
 * sets *status and errno as monarch_open_source does. */
int monarch_source_of(struct monarch_engine *e, struct fill *f, int *status);
