/* What loaders in training programs do without Python's lock: many reads at once. */
#pragma once

#ifndef MONARCH_CDEF
#include <stdint.h>
#endif

/* --- many reads in flight at once: reads.c ------------------------------------------------------
 */

/* The most reads of one call that are in flight at once. */
#define MONARCH_READS_IN_FLIGHT 256

/* Reads lengths[i] bytes at offsets[i] of descriptors[i] to out[i], for each i below `n`.
 * At most `in_flight` reads are under way at once: the caller's thread makes reads too, and the
 * process keeps the other threads for later calls. They help only where reads have to wait. Returns
 * `n`, or the number of the first read that failed; then *error is its errno, 0 if its file ended
 * too early. After a failure no further reads begin, and those that had begun have ended when the
 * call returns. */
uint64_t monarch_read_all(const int32_t *descriptors, const int64_t *offsets,
                          const int64_t *lengths, char *const *out, uint64_t n, int in_flight,
                          int *error);

/* --- samples that processes of one node keep in shared memory: kept.c ---------------------------
 */

/* How a sample's table entry stands; MONARCH_KEPT_WRITING has the writer's process above it. */
enum monarch_kept_state {
    MONARCH_KEPT_EMPTY,
    MONARCH_KEPT_WHOLE,
    MONARCH_KEPT_NO_ROOM,
    MONARCH_KEPT_WRITING,
};

/* One sample: its state (see above), and where its bytes lie in the data. */
struct monarch_kept_sample {
    uint64_t state;
    uint64_t offset;
    uint64_t length;
};

/* The beginning of the memory. `samples` entries follow it, and at `data` the bytes.
 * room, used : of the data [bytes];  from_memory, from_source : samples that were read */
struct monarch_kept {
    uint64_t samples;
    uint64_t data;
    uint64_t room;
    uint64_t used;
    uint64_t from_memory;
    uint64_t from_source;
};

/* Copies those of the samples places[0..n) that are whole, with lengths[i] bytes, to
 * out + starts[i], and sets missing[i] to 0 for them and to 1 for all others. A place of -1 is a
 * sample that is not kept. Returns how many are missing. */
uint64_t monarch_kept_take(struct monarch_kept *kept, const int64_t *places, uint64_t n, char *out,
                           const int64_t *starts, const int64_t *lengths, uint8_t *missing);
/* Where a whole sample lies from `kept` on; -1 if it is not whole. Sets *length to its bytes. */
int64_t monarch_kept_find(struct monarch_kept *kept, uint64_t place, uint64_t *length);
/* Stores a sample, unless another process has done so, is doing so, or there is no room. A writer
 * that has been killed counts for nothing. */
void monarch_kept_put(struct monarch_kept *kept, uint64_t place, const char *bytes,
                      uint64_t length);
/* Counts samples that were read. */
void monarch_kept_count(struct monarch_kept *kept, uint64_t from_memory, uint64_t from_source);
