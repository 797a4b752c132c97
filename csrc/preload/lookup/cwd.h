/* The working directory, as far as it says whether a relative path can lead to a source. */
#ifndef MONARCH_CWD_H
#define MONARCH_CWD_H

#include <fcntl.h>
#include <string.h>

#include "preload/process/attributes.h"
#include "preload/session/session.h"
#include "shared/path.h"

/* What the working directory is to the sources. It saves a getcwd for relative paths far from any
 * source; "near" always asks the kernel, so that a stale answer costs speed only.
 * Changes of directory raise the count above the two low bits. */
enum { MONARCH_CWD_UNKNOWN, MONARCH_CWD_FAR, MONARCH_CWD_NEAR };
extern uint64_t monarch_cwd_is HIDDEN; /* atomic */

/* Nearly all relative paths of programs: without `..` or a link, none leads from there to a source.
 */
static inline int monarch_is_far(int dir, const char *path) {
    return path[0] != '/' && dir == AT_FDCWD &&
           (__atomic_load_n(&monarch_cwd_is, __ATOMIC_ACQUIRE) & 3) == MONARCH_CWD_FAR &&
           !monarch_may_go_up(path);
}

/* Finds out what it is, if that is not known. */
void monarch_find_cwd(const struct session *s);

/* Whether `path` is `root` or lies below it, by its letters. */
static inline int monarch_is_below(const char *path, const char *root, size_t root_len) {
    return strncmp(path, root, root_len) == 0 && (path[root_len] == '/' || !path[root_len]);
}

#endif
