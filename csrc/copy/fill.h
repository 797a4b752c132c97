/* The fill of one file. */
#ifndef MONARCH_FILL_H
#define MONARCH_FILL_H

#include "copy/filling.h"

/* The claim of a file whose descriptor was handed over, and is closed now. */
void monarch_end_claim(struct monarch_clients *m, uint64_t id);
/* Whether the descriptor is to be closed now: its program waits for that, or the claim has ended.
 */
int monarch_is_recalled(const struct monarch_clients *m, uint64_t id, uint64_t now_ns);
/* A reader's descriptor that the order has and does not use; nothing if it has none. */
void monarch_close_handed(struct monarch_engine *e, struct job *job);
/* Opens both files and makes the copy known to readers. NULL: the job has its answer. */
struct fill *monarch_fill_begin(struct monarch_engine *e, struct job *job);
/* Moves `count` units, of one block, that the caller has claimed. `stream` is the checksum of the
 * block's bytes so far when they come in order, else NULL. */
void monarch_fill_move(struct monarch_engine *e, struct fill *f, uint64_t unit, uint64_t count,
                       char *buffer, struct block_sum_stream *stream);
int monarch_fill_is_over(const struct fill *f); /* complete, or failed */
/* Once it is over and nobody else uses it: the answer; frees it. */
void monarch_fill_end(struct monarch_engine *e, struct fill *f);

/* Whether a client's request for the file lies in the bitmap, not taken yet: then the file is
 * ABSENT only until somebody orders its fill. */
int monarch_is_requested(const struct monarch_clients *m, uint64_t id);
/* Tells the readers that wait for units [first, first + count) of an entry to look again. */
void monarch_answer(struct monarch_clients *m, uint64_t entry, uint64_t first, uint64_t count);

#endif
