/* Page-aligned buffers through which whole files are copied. */
#pragma once

#include <stdlib.h>

/* Buffers are page-aligned, as the page cache is. Kernels copy memory by `rep movsb`, which takes
 * six times as long on AMD's Zen 3 and later if the target's offset in its page exceeds the
 * source's offset by 1 to 31 bytes. malloc aligns large blocks to 16 bytes only. */
#define MONARCH_PAGE_BYTES 4096

/* Allocates a buffer of `bytes` bytes, a multiple of MONARCH_PAGE_BYTES. The caller frees it with
 * free(). Returns NULL without memory. */
static inline char *monarch_new_buffer(size_t bytes) {
    return aligned_alloc(MONARCH_PAGE_BYTES, bytes);
}
