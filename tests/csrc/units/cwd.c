#include "preload/lookup/cwd.c"

#include "made.h"

EXPORT int cwd_is_near(struct session *s, const char *cwd) { return is_near(s->control, cwd); }
EXPORT uint64_t cwd_position(void) { return monarch_cwd_is; }
EXPORT void cwd_find(struct session *s) { monarch_find_cwd(s); }
EXPORT int cwd_chdir(const char *path) { return chdir(path); }
EXPORT int cwd_fchdir(int fd) { return fchdir(fd); }
EXPORT int cwd_is_far(int dir, const char *path) { return monarch_is_far(dir, path); }
static struct session *watching;
static uint64_t seen_within;
/* Acts as another thread, which determines the position of the working directory just before the
 * kernel changes this directory. */
static void look_within(void) {
    seen_within = monarch_cwd_is;
    monarch_find_cwd(watching);
}
static int watched_chdir(const char *path) {
    look_within();
    return (int)sys6(SYS_chdir, (long)path, 0, 0, 0, 0, 0);
}
static int watched_fchdir(int fd) {
    look_within();
    return (int)sys6(SYS_fchdir, fd, 0, 0, 0, 0, 0);
}
/* From now on, look_within runs during each change of the working directory, unless `s` is NULL. */
EXPORT void cwd_watch(struct session *s) {
    watching = s;
    monarch_real.chdir = s ? (void *)watched_chdir : NULL;
    monarch_real.fchdir = s ? (void *)watched_fchdir : NULL;
}
EXPORT uint64_t cwd_seen_within(void) { return seen_within; }
