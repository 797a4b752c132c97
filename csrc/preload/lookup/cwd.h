/* Tracks whether the working directory is far from all sources, which means that it is neither
 * below nor above any source. While this is so, most relative paths need no look-up. */
#pragma once

#include <fcntl.h>
#include <string.h>

#include "preload/process/attributes.h"
#include "preload/session/roots.h"
#include "preload/session/session.h"
#include "shared/path.h"

/* Position of the working directory. FAR: the directory is neither below nor above any source, so a
 * relative path needs no getcwd. NEAR: the directory is below or above a source, so each relative
 * path needs a getcwd. An outdated NEAR costs time, but does no harm. The two lowest bits of
 * monarch_cwd_is are one of these values. The other bits count changes of directory. */
enum { MONARCH_CWD_UNKNOWN, MONARCH_CWD_FAR, MONARCH_CWD_NEAR };

/* Returns whether a path has no `..` and is relative to a working directory that is far from every
 * source. If so, the path leads to no source, unless a component of the path is a link. For
 * nearly all relative paths of programs, the result is 1. */
static inline int monarch_is_far(int dir, const char *path) {
    return path[0] != '/' && dir == AT_FDCWD &&
           (__atomic_load_n(&monarch_cwd_is, __ATOMIC_ACQUIRE) & 3) == MONARCH_CWD_FAR &&
           !monarch_may_go_up(path);
}

/* Finds out the position of the working directory if it is unknown. */
void monarch_find_cwd(const struct session *s);

/* Returns whether `path`, compared as text, is `root` or lies below it. */
static inline int monarch_is_below(const char *path, const char *root, size_t root_len) {
    return strncmp(path, root, root_len) == 0 && (path[root_len] == '/' || !path[root_len]);
}
