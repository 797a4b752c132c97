/* Work of loaders that needs no Python lock: many reads at once, and samples kept in memory. */
#pragma once

#ifndef MONARCH_CDEF
#include <stdint.h>
#endif

/* --- many reads in flight at once: reads.c ------------------------------------------------------
 */

/* The most reads that one call has in flight at once. */
#define MONARCH_READS_IN_FLIGHT 256

/* Reads lengths[i] bytes at offsets[i] of descriptors[i] to out[i], for each i below `n`.
 * At most `in_flight` reads are under way at once. The caller's thread makes reads too; the process
 * keeps its other threads for later calls. If few reads of the last call had to wait, the threads
 * are woken only when a read has to wait. Returns `n`, or the number of the first read that failed;
 * then *error is its errno, or 0 if its file ended too early. After a failure no further reads
 * begin, and the call returns when those that had begun have ended. */
uint64_t monarch_read_all(const int32_t *descriptors, const int64_t *offsets,
                          const int64_t *lengths, char *const *out, uint64_t n, int in_flight,
                          int *error);

/* --- samples that processes of one node keep in shared memory: kept.c ---------------------------
 */

/* The state of a sample's table entry, in its lowest byte. The bits above MONARCH_KEPT_WRITING are
 * the process id of the writer. */
enum monarch_kept_state {
    MONARCH_KEPT_EMPTY,
    MONARCH_KEPT_WHOLE,
    MONARCH_KEPT_NO_ROOM,
    MONARCH_KEPT_WRITING,
};

/* The table entry of a sample: its state (see above), and where its bytes lie within the data. */
struct monarch_kept_sample {
    uint64_t state;
    uint64_t offset;
    uint64_t length;
};

/* The beginning of the memory. `samples` entries follow it, and at `data` the bytes.
 * room, used : of the data [bytes];  from_memory, from_source : samples that were read
 * is_full : whether a sample has found no room */
struct monarch_kept {
    uint64_t samples;
    uint64_t data;
    uint64_t room;
    uint64_t used;
    uint64_t from_memory;
    uint64_t from_source;
    uint64_t is_full;
};

/* Copies those of the samples places[0..n) that are whole, with lengths[i] bytes, to
 * out + starts[i], and sets missing[i] to 0 for them and to 1 for all others. A place of -1 is a
 * sample that is not kept. Returns how many are missing. */
uint64_t monarch_kept_take(struct monarch_kept *kept, const int64_t *places, uint64_t n, char *out,
                           const int64_t *starts, const int64_t *lengths, uint8_t *missing);
/* Where a whole sample lies from `kept` on; -1 if it is not whole. Sets *length to its bytes. */
int64_t monarch_kept_find(struct monarch_kept *kept, uint64_t place, uint64_t *length);
/* Stores a sample, unless another process has done so, is doing so, or there is no room. A writer
 * that has been killed counts for nothing. Returns 1 for the first sample that finds no room, in
 * all processes, and 0 else. */
int monarch_kept_put(struct monarch_kept *kept, uint64_t place, const char *bytes, uint64_t length);
/* Counts samples that were read. */
void monarch_kept_count(struct monarch_kept *kept, uint64_t from_memory, uint64_t from_source);
