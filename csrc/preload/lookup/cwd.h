/* Tracks whether the working directory is far from all sources: then most relative paths need no
 * look-up. */
#pragma once

#include <fcntl.h>
#include <string.h>

#include "preload/process/attributes.h"
#include "preload/session/roots.h"
#include "preload/session/session.h"
#include "shared/path.h"

/* Where the working directory lies. FAR: neither below nor above any source, so a relative path
 * needs no getcwd. NEAR: below or above a source, so each relative path needs a getcwd. An
 * outdated NEAR costs time, but does no harm. The two lowest bits of monarch_cwd_is contain one of
 * these values. The other bits count changes of the working directory. */
enum { MONARCH_CWD_UNKNOWN, MONARCH_CWD_FAR, MONARCH_CWD_NEAR };

/* Returns whether the path has no `..` and is relative to a working directory that is far from
 * every source. A path of this kind leads into a source only if one of its components is a link.
 * Nearly all relative paths of programs are of this kind. */
static inline int monarch_is_far(int dir, const char *path) {
    return path[0] != '/' && dir == AT_FDCWD &&
           (__atomic_load_n(&monarch_cwd_is, __ATOMIC_ACQUIRE) & 3) == MONARCH_CWD_FAR &&
           !monarch_may_go_up(path);
}

/* If it is unknown where the working directory lies, finds that out and updates monarch_cwd_is. */
void monarch_find_cwd(const struct session *s);

/* Returns whether `path`, compared as text, is `root` or lies below it. */
static inline int monarch_is_below(const char *path, const char *root, size_t root_len) {
    return strncmp(path, root, root_len) == 0 && (path[root_len] == '/' || !path[root_len]);
}
