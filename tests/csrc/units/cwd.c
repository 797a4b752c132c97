#include "preload/lookup/cwd.c"

#include "made.h"

EXPORT int cwd_is_near(struct session *s, const char *cwd) { return is_near(s->control, cwd); }
EXPORT uint64_t cwd_position(void) { return monarch_cwd_is; }
EXPORT void cwd_find(struct session *s) { monarch_find_cwd(s); }
EXPORT int cwd_chdir(const char *path) { return chdir(path); }
EXPORT int cwd_fchdir(int fd) { return fchdir(fd); }
EXPORT int cwd_is_far(int dir, const char *path) { return monarch_is_far(dir, path); }
