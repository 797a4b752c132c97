/* Builds text without libc's formatting functions, which may allocate memory and use the locale.
 *
 * Each function returns a pointer to the NUL at the end of the text. No function checks for room;
 * the caller must provide enough. */
#pragma once

#include <stdint.h>
#include <string.h>

static inline char *put(char *at, const char *text) {
    size_t n = strlen(text);
    memcpy(at, text, n + 1);
    return at + n;
}

static inline char *put_number(char *at, uint64_t v, unsigned base, int digits) {
    char tmp[24];
    int n = 0;
    do
        tmp[n++] = "0123456789abcdef"[v % base];
    while ((v /= base) || n < digits);
    while (n)
        *at++ = tmp[--n];
    *at = 0;
    return at;
}
