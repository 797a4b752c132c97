#include "preload/autostart/interpreter.c"

#include "made.h"

static const char *before;
/* Makes the library use `library` as its own path. NULL restores the real path. */
EXPORT void interpreter_library(const char *library) {
    static char path[2 * MONARCH_PATH_MAX];
    before = before ? before : monarch_library;
    if (library)
        put(path, library);
    monarch_library = library ? path : before;
}
EXPORT int interpreter_find(char *python, char *packages) {
    return monarch_find_interpreter(python, packages);
}
