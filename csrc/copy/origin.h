/* Where the bytes of a fill come from: a peer, then the source. */
#pragma once

#include "copy/filling.h"

/* Gets the bytes [at, at + n) of one block from the peer that the order names and writes them to
 * the copy. *sum is their sum. 0 when the bytes have to come from the source: the order names no
 * peer, or the peer has failed. */
int monarch_fetch(struct monarch_engine *e, struct fill *f, uint64_t at, uint64_t n, char *buffer,
                  struct block_sum *sum);
/* The peer that gave all of a fill that is over; -1 for none. A peer sends the last block only when
 * it has the file whole. */
int monarch_giver_of(const struct fill *f);
/* Notes that a source has given something. */
void monarch_note_source(struct monarch_engine *e);
/* The source's file, which is opened when it is first needed; as monarch_open_source. */
int monarch_source_of(struct monarch_engine *e, struct fill *f, int *status);
