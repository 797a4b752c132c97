/* The loaders' functions that run without Python's lock: parallel reads, and samples in shared
 * memory. */
#pragma once

#ifndef MONARCH_CDEF
#include <stdint.h>
#endif

/* --- many reads in flight at once: reads.c ---------------------------------------------------- */

/* Maximum number of reads that one call has in flight at once. */
#define MONARCH_READS_IN_FLIGHT 256

/* Makes `n` reads. Read i copies lengths[i] bytes, from offset offsets[i] of descriptors[i] on, to
 * out[i]. At most `in_flight` reads are in flight at once. Returns `n` if no read fails. Otherwise
 * returns the smallest index of a failed read, and sets *error to its errno, or to 0 if its file
 * ended too early. After a failure, no further reads begin, and the function returns when the
 * reads in flight have ended.
 *
 * The calling thread and further threads make the reads. The further threads are kept for later
 * calls. Usually they are woken at the beginning of a call. But if few reads of the previous call
 * had to wait for a disk or the network, the calling thread begins alone. It then wakes the
 * further threads only after a read had to wait. */
uint64_t monarch_read_all(const int32_t *descriptors, const int64_t *offsets,
                          const int64_t *lengths, char *const *out, uint64_t n, int in_flight,
                          int *error);

/* --- samples that the processes of a node keep in shared memory: kept.c ----------------------- */

/* State of a sample, in the lowest byte of the field `state`. While the state is
 * MONARCH_KEPT_WRITING, the higher bits are the process id of the writer. */
enum monarch_kept_state {
    MONARCH_KEPT_EMPTY,
    MONARCH_KEPT_WHOLE,
    MONARCH_KEPT_NO_ROOM,
    MONARCH_KEPT_WRITING,
};

/* The table entry of a sample: its state (enum monarch_kept_state), and the place of its bytes.
 * `offset` counts from the beginning of all samples' bytes. */
struct monarch_kept_sample {
    uint64_t state;
    uint64_t offset;
    uint64_t length;
};

/* The header at the beginning of the shared memory. A table follows it, with one entry for each of
 * the `samples` samples. The samples' bytes begin at offset `data`.
 * room, used : size of the data, and how much of it is used [bytes]
 * from_memory, from_source : number of samples read from the memory, and from their source
 * is_full : 1 after a sample could not be stored for lack of room */
struct monarch_kept {
    uint64_t samples;
    uint64_t data;
    uint64_t room;
    uint64_t used;
    uint64_t from_memory;
    uint64_t from_source;
    uint64_t is_full;
};

/* Copies those of `n` samples that are stored in the shared memory. places[i] is the index of
 * sample i's table entry, or -1 if this sample is never kept. If the sample is completely stored
 * and has lengths[i] bytes, copies it to out + starts[i], and sets missing[i] to 0. Otherwise sets
 * missing[i] to 1. Returns the number of missing samples. */
uint64_t monarch_kept_take(struct monarch_kept *kept, const int64_t *places, uint64_t n, char *out,
                           const int64_t *starts, const int64_t *lengths, uint8_t *missing);
/* Returns the offset from `kept` at which a sample's bytes begin, and sets *length to their
 * number. Returns -1 if the sample is not completely stored. place: index of the sample's table
 * entry. */
int64_t monarch_kept_find(struct monarch_kept *kept, uint64_t place, uint64_t *length);
/* Stores a sample. Does nothing if the sample is already stored, if another process is storing it,
 * or if there was no room for it earlier. If that other process was killed, stores the sample
 * nevertheless. Returns 1 the first time that any process finds no room for a sample, otherwise
 * 0. */
int monarch_kept_put(struct monarch_kept *kept, uint64_t place, const char *bytes, uint64_t length);
/* Adds to the counts `from_memory` and `from_source` of struct monarch_kept. */
void monarch_kept_count(struct monarch_kept *kept, uint64_t from_memory, uint64_t from_source);
