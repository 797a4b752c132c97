/* Records what a program changes, before or while the interposed functions change it. */
#pragma once

#include <fcntl.h>

#include "preload/process/attributes.h"

/* These functions record that a file has changed, so that its copy is not served any more. Nothing
 * is recorded of a file that is not on a source's device; monarch_changed_path returns whether it
 * is on one. monarch_changed_tree is for renamed directories. */
int monarch_changed_path(int dir, const char *path, int follow);
void monarch_changed_fd(int fd);
void monarch_changed_tree(int dir, const char *path);

/* For a call that changes what `path` leads to: records the change, and returns the path to pass to
 * the call. That is `path`, unless `path` leads to a copy (/proc/self/fd/N and the like). Then it
 * is the source file's path, which is written to `real` (MONARCH_PATH_MAX bytes). `real` becomes
 * empty if that path no longer leads to the source file: the call then fails (ENOENT), and no other
 * file is changed. */
const char *monarch_path_to_change(int dir, const char *path, int follow, char *real);
/* Does what monarch_path_to_change does, for a call on the descriptor `fd`. Returns NULL if the
 * descriptor is not a copy's; then the call uses the descriptor as it is. */
const char *monarch_fd_to_change(int fd, char *real);
/* Whether the descriptor is a copy's, and whether the path leads to a copy (by the name of a
 * descriptor in /proc or /dev). If so, `real` becomes the source file's path, as for
 * monarch_path_to_change. No change is recorded. */
int monarch_is_copy(int fd, char *real);
int monarch_leads_to_copy(const char *path, char *real);
/* Does what monarch_leads_to_copy does, but compares the path's first letters first: they rule out
 * nearly all paths. */
static inline int monarch_names_copy(const char *path, char *real) {
    MAYBE_NULL(path);
    if (!path || path[0] != '/')
        return 0;
    int may_lead = path[1] == 'p'
                       ? path[2] == 'r' && path[3] == 'o' && path[4] == 'c' && path[5] == '/'
                       : path[1] == 'd' && path[2] == 'e' && path[3] == 'v' && path[4] == '/' &&
                             ((path[5] == 'f' && path[6] == 'd' && path[7] == '/') ||
                              (path[5] == 's' && path[6] == 't' && path[7] == 'd'));
    return may_lead && monarch_leads_to_copy(path, real);
}

/* Whether open(2) reads its argument `mode`. O_TMPFILE contains the O_DIRECTORY bit, so compare the
 * full pattern: opening a directory passes no mode. */
static inline int monarch_needs_mode(int flags) {
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
}

/* Whether an open with these flags may change the file or make one. O_TRUNC changes it even with
 * O_RDONLY. The access mode O_WRONLY | O_RDWR, which Linux has for ioctl alone, counts too: the
 * kernel asks for the right to write. */
static inline int monarch_may_change(int flags) {
    return (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) || monarch_needs_mode(flags);
}

/* Whether path and flags mean the descriptor itself: an empty path with AT_EMPTY_PATH. */
int monarch_means_descriptor(const char *path, int flags);

/* Called when a name is made or removed: records that the listing of the directory in which `path`
 * lies is no longer valid. */
void monarch_changed_names(int dir, const char *path);
/* Does what monarch_changed_names does, for a path that need not be kept: the function cuts it in
 * place. */
void monarch_changed_names_of(int dir, char *path);
/* Called after an open of `path` that may have made the file: records that the listing of its
 * directory is no longer valid. `real` is room for a path. */
void monarch_made(int fd, int dir, const char *path, char *real);
/* Called after an open of `path` that may write the file and, with `created`, may have made it:
 * records both changes. Returns what monarch_fd_to_change would. */
const char *monarch_opened_for_change(int fd, int created, int dir, const char *path, char *real);
