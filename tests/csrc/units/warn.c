#include "preload/process/calls.h"
#include "shared/sys.h"

/* The process that counts as the parent of this one. */
static long parent;
#define sys6(call, ...) ((call) == SYS_getppid ? parent : sys6(call, __VA_ARGS__))
#include "preload/session/warn.c"
#undef sys6

#include "made.h"

/* Forgets earlier warnings, as in a process that loads the library now. is_marked: whether the
 * environment says that the warning was written. */
EXPORT void warn_load(int64_t parent_pid, int is_marked) {
    parent = parent_pid;
    warned = said = 0;
    unsetenv(SAID);
    if (is_marked)
        setenv(SAID, "1", 1);
    remember_stderr();
}
EXPORT void warn_say(const char *what, const char *name, const char *hint) {
    monarch_warn(what, name, hint);
}
/* Returns whether this process marks the environment of the programs that it executes. The mark
 * says that the warning was written. */
EXPORT int warn_marks(void) {
    monarch_pass_warning_on();
    int is_marked = getenv(SAID) != NULL;
    unsetenv(SAID);
    return is_marked;
}
