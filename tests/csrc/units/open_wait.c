#include "preload/fill/open_wait.c"

#include "made.h"

EXPORT void open_wait_note(int is_good) { note_wait(is_good); }
EXPORT int open_wait_skips(void) { return skips(); }
