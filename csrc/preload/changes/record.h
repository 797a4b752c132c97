/* Records what a program changes. The interposed functions call these functions before or right
 * after the change. */
#pragma once

#include <fcntl.h>

#include "preload/process/attributes.h"

/* These functions record that a file has changed, so that its copy is no longer served. A file that
 * is not on a source's device is not recorded. monarch_changed_path returns whether the file is on
 * a source's device. monarch_changed_tree is for renamed directories. */
int monarch_changed_path(int dir, const char *path, int follow);
/* Like monarch_changed_path, but needs less stack, and records only the change of the file that is
 * at the path now. */
int monarch_changed_file(int dir, const char *path, int follow);
/* Records that the file which the catalog has at `path` has changed, if that is another file than
 * the one that is there now: a process without the library may have replaced it. Call this after a
 * call with this path has succeeded. */
void monarch_changed_known(int dir, const char *path, int follow);
void monarch_changed_fd(int fd);
void monarch_changed_tree(int dir, const char *path);

/* Records the change for a call that changes the file to which `path` leads, also of another file
 * that the catalog has at the path, and returns the path to pass to that call. If `path` leads to a
 * copy (as /proc/self/fd/N may), writes the path of the source's file to `real` (MONARCH_PATH_MAX
 * bytes), and returns `real`. Otherwise returns `path`. If the source's file is no longer at its
 * path, makes `real` empty: the call then fails with ENOENT, and no other file is changed. */
const char *monarch_path_to_change(int dir, const char *path, int follow, char *real);
/* Like monarch_path_to_change, but needs less stack, and records only the change of the file that
 * is at the path now. Call monarch_changed_known after the change. */
const char *monarch_file_to_change(int dir, const char *path, int follow, char *real);
/* Like monarch_path_to_change, for a call on the descriptor `fd`. Returns NULL if `fd` is not a
 * descriptor of a copy; the call then uses `fd` itself. */
const char *monarch_fd_to_change(int fd, char *real);
/* monarch_is_copy returns whether `fd` is a descriptor of a copy. monarch_leads_to_copy returns
 * whether the path leads to a copy, as the name of a copy's descriptor in /proc or /dev does. For a
 * copy, `real` gets the path of the source's file, as in monarch_path_to_change. No change is
 * recorded. */
int monarch_is_copy(int fd, char *real);
int monarch_leads_to_copy(const char *path, char *real);
/* Like monarch_leads_to_copy, but first compares the beginning of the path, which rules out nearly
 * all paths. */
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

/* Returns whether open(2) with these flags reads its argument `mode`. O_TMPFILE contains the bit of
 * O_DIRECTORY, so all bits of O_TMPFILE are compared: an open with O_DIRECTORY alone passes no
 * mode. */
static inline int monarch_needs_mode(int flags) {
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
}

/* Returns whether an open with these flags may change the file or create one. O_TRUNC changes the
 * file even with O_RDONLY. The result is also 1 for the access mode O_WRONLY | O_RDWR: Linux has
 * this mode only for ioctl, but requires write permission for it. */
static inline int monarch_may_change(int flags) {
    return (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) || monarch_needs_mode(flags);
}

/* Returns whether the call concerns the directory descriptor itself: `path` is empty, and `flags`
 * has AT_EMPTY_PATH. */
int monarch_means_descriptor(const char *path, int flags);

/* Call this when a name is created or removed. Records that the listing of the directory of `path`
 * is no longer valid. */
void monarch_changed_names(int dir, const char *path);
/* Like monarch_changed_names, but shortens `path` in place instead of copying it. */
void monarch_changed_names_of(int dir, char *path);
/* Call this after an open of `path` that may have created the file. Records that the listing of the
 * file's directory is no longer valid. `real` is a buffer for a path. */
void monarch_made(int fd, int dir, const char *path, char *real);
/* Call this after an open of `path` that may write to the file and, if `created` is set, may have
 * created it. Records both changes. Returns what monarch_fd_to_change would return. */
const char *monarch_opened_for_change(int fd, int created, int dir, const char *path, char *real);
