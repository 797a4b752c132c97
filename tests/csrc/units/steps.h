/* Include this file in a unit whose tests check the order of steps: calls of libc's functions, and
 * what the library does before and after them. The text `steps` lists the steps in their order. */
#pragma once

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static char steps[3 * 4096];
__attribute__((format(printf, 1, 2))) static void step(const char *format, ...) {
    size_t n = strlen(steps);
    va_list args;
    if (n + 3 > sizeof steps)
        return;
    va_start(args, format);
    n += (size_t)snprintf(steps + n, sizeof steps - n, "%s", n ? ", " : "");
    vsnprintf(steps + n, sizeof steps - n, format, args);
    va_end(args);
}
