/* Page-aligned buffers through which whole files are copied. */
#pragma once

#include <stdlib.h>

/* Kernels copy memory with `rep movsb`. On AMD's Zen 3 and later, this instruction is six times
 * slower in one case: the destination's offset within its page is 1 to 31 bytes larger than the
 * source's. This can happen with memory from malloc, which is aligned only to 16 bytes. So these
 * buffers are page-aligned, like the pages of the page cache. */
#define MONARCH_PAGE_BYTES 4096

/* Allocates a buffer of `bytes` bytes, which must be a multiple of MONARCH_PAGE_BYTES. The caller
 * frees it with free(). Returns NULL if memory is exhausted. */
static inline char *monarch_new_buffer(size_t bytes) {
    return aligned_alloc(MONARCH_PAGE_BYTES, bytes);
}
