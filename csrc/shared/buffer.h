/* Buffers through which whole files go. */
#ifndef MONARCH_BUFFER_H
#define MONARCH_BUFFER_H

#include <stdlib.h>

/* What the kernel keeps of files begins at pages. Where a copy's target lies 1 to 31 bytes further
 * in its page than its source, `rep movsb`, by which kernels copy, takes six times as long on AMD's
 * Zen 3 and later; malloc's large blocks lie at 16. */
#define MONARCH_PAGE_BYTES 4096

/* bytes: a multiple of MONARCH_PAGE_BYTES. For free(); NULL where there is no memory. */
static inline char *monarch_new_buffer(size_t bytes) {
    return aligned_alloc(MONARCH_PAGE_BYTES, bytes);
}

#endif
