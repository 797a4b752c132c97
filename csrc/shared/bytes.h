/* Compares short texts inline, 16 bytes at a time. Every look-up of a path compares texts, and a
 * call into libc would cost as much as the comparison itself. No byte outside a text is read. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Types for loads from any address, aligned or not. The memory may hold objects of any type. */
typedef unsigned char sixteen_bytes __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint64_t two_words __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint64_t one_word __attribute__((aligned(1), may_alias));

/* Returns where to load 16 bytes of a text of `n` bytes (n >= 16), so that byte `i` is among them.
 * Near the end of the text, this is n - 16 instead of `i`, so that no byte after the text is
 * loaded. */
static inline size_t sixteen_at(size_t i, size_t n) { return i + 16 <= n ? i : n - 16; }

static inline int same_bytes(const char *a, const char *b, size_t n) {
    two_words other = {0, 0};
    size_t i = 0;
    if (n >= 16) {
        for (; i < n; i += 16)
            other |= *(const two_words *)(a + sixteen_at(i, n)) ^
                     *(const two_words *)(b + sixteen_at(i, n));
        return !(other[0] | other[1]);
    }
    if (n >= 8)
        return !((*(const one_word *)a ^ *(const one_word *)b) |
                 (*(const one_word *)(a + n - 8) ^ *(const one_word *)(b + n - 8)));
    while (i < n && a[i] == b[i])
        i++;
    return i == n;
}
