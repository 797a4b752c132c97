#include <errno.h>

#include "preload/session/tell.h"
#include "steps.h"

static void tell_change(const struct stat *st, int is_whole_tree) {
    step("told %d%s", (int)st->st_size, is_whole_tree ? " tree" : "");
}
#define monarch_tell_change(st, tree) tell_change(st, tree)
#include "preload/calls/watch.c"

#include "made.h"

/* Watches the path. Returns the number of the watch, or -errno. */
EXPORT int watch_add(int fd, const char *path, uint32_t mask) {
    steps[0] = 0;
    int r = inotify_add_watch(fd, path, mask);
    return r < 0 ? -errno : r;
}
EXPORT const char *watch_told(void) { return steps; }
EXPORT int watch_is_changed(struct session *s, uint64_t dev, uint64_t ino) {
    return monarch_is_changed(s->clients, dev, ino);
}
