#include "preload/calls/names.c"

#include "made.h"

EXPORT void names_lack_renameat2(int is) { monarch_real.renameat2 = is ? (void *)1 : NULL; }
EXPORT int names_renameat2(int dir, const char *from, int todir, const char *to, unsigned flags) {
    errno = 54321;
    int r = renameat2(dir, from, todir, to, flags);
    return r == 0 && errno == 54321 ? 0 : -errno;
}
