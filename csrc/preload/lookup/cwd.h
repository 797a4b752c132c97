/* The working directory, as far as it says whether a relative path can lead to a source. */
#pragma once

#include <fcntl.h>
#include <string.h>

#include "preload/process/attributes.h"
#include "preload/session/session.h"
#include "shared/path.h"

/* Where the working directory lies relative to the sources. FAR saves a getcwd for relative paths
 * far from any source; NEAR always asks the kernel, so that a stale answer costs speed only. The
 * bits above the two low ones count changes of directory. */
enum { MONARCH_CWD_UNKNOWN, MONARCH_CWD_FAR, MONARCH_CWD_NEAR };
extern uint64_t monarch_cwd_is HIDDEN; /* atomic */

/* Whether a path is relative and far from every source: without `..` or a link it leads to none
 * from there. That is so for nearly all relative paths of programs. */
static inline int monarch_is_far(int dir, const char *path) {
    return path[0] != '/' && dir == AT_FDCWD &&
           (__atomic_load_n(&monarch_cwd_is, __ATOMIC_ACQUIRE) & 3) == MONARCH_CWD_FAR &&
           !monarch_may_go_up(path);
}

/* Finds out where the working directory lies, if that is not known. */
void monarch_find_cwd(const struct session *s);

/* Whether, by its letters, `path` is `root` or lies below it. */
static inline int monarch_is_below(const char *path, const char *root, size_t root_len) {
    return strncmp(path, root, root_len) == 0 && (path[root_len] == '/' || !path[root_len]);
}
