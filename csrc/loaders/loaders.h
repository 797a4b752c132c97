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
