/* The parts of the loaders that run without Python's lock: they make many reads at the same time,
 * and keep samples in memory. */
#pragma once

#ifndef MONARCH_CDEF
#include <stdint.h>
#endif

/* --- many reads in flight at once: reads.c ---------------------------------------------------- */

/* Maximum number of reads that one call has in flight at once. */
#define MONARCH_READS_IN_FLIGHT 256

/* Makes `n` reads. Read i, with i below `n`, reads lengths[i] bytes at offsets[i] of descriptors[i]
 * into out[i]. At most `in_flight` reads are in flight at once. Returns `n` if no read fails.
 * Otherwise returns the smallest index of a failed read; *error is then the errno of this read, or
 * 0 if its file ended too early. After a failure, no further reads begin, and the call returns when
 * the reads in flight have ended.
 *
 * The calling thread makes reads too. The other threads stay in the process for later calls.
 * Usually these threads are woken when the call begins. But if few reads of the previous call
 * had to wait for a device, the threads are woken only after a read of this call has waited. */
uint64_t monarch_read_all(const int32_t *descriptors, const int64_t *offsets,
                          const int64_t *lengths, char *const *out, uint64_t n, int in_flight,
                          int *error);

/* --- samples that the processes of a node keep in shared memory: kept.c ----------------------- */

/* State of a sample's table entry, in the lowest byte of `state`. While the state is
 * MONARCH_KEPT_WRITING, the higher bits are the process id of the writer. */
enum monarch_kept_state {
    MONARCH_KEPT_EMPTY,
    MONARCH_KEPT_WHOLE,
    MONARCH_KEPT_NO_ROOM,
    MONARCH_KEPT_WRITING,
};

/* The table entry of a sample: its state (enum monarch_kept_state), and the position and length
 * of its bytes in the data. */
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

/* Copies `n` kept samples. For each i below `n`: if the sample of table entry places[i] is
 * completely stored with lengths[i] bytes, copies it to out + starts[i], and sets missing[i] to
 * 0. Otherwise sets missing[i] to 1. places[i] is -1 for a sample that is never kept. Returns the
 * number of missing samples. */
uint64_t monarch_kept_take(struct monarch_kept *kept, const int64_t *places, uint64_t n, char *out,
                           const int64_t *starts, const int64_t *lengths, uint8_t *missing);
/* Returns where a sample's bytes begin, as an offset from `kept`, and sets *length to the number of
 * bytes. Returns -1 if the sample is not completely stored. */
int64_t monarch_kept_find(struct monarch_kept *kept, uint64_t place, uint64_t *length);
/* Stores a sample. Does nothing if the sample is already stored, if another process is storing it,
 * or if there was no room for it earlier. If the process that was storing the sample was killed,
 * this process stores it instead. Returns 1 if there is no room for the sample and this is the
 * first such call in any process. Otherwise returns 0. */
int monarch_kept_put(struct monarch_kept *kept, uint64_t place, const char *bytes, uint64_t length);
/* Adds to the counts `from_memory` and `from_source` of struct monarch_kept. */
void monarch_kept_count(struct monarch_kept *kept, uint64_t from_memory, uint64_t from_source);
