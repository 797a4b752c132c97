/* Records what a program changes, so that no process is served an outdated copy.
 *
 * An interposed function that changes a file or a name calls one of the functions below, before or
 * right after the change. */
#pragma once

#include <fcntl.h>

#include "preload/process/attributes.h"

/* The next functions record that a file has changed, so that its copy is no longer served. They
 * ignore a file that is not on a source's device. follow: whether a link at the end of the path is
 * followed.
 *
 * monarch_changed_path records a change of the file that is at the path now, and returns whether
 * that file is on a source's device. If the catalog has another file for this path, it also records
 * a change of the catalog's file (monarch_changed_known). */
int monarch_changed_path(int dir, const char *path, int follow);
/* Does the same as monarch_changed_path, but records only a change of the file that is at the path
 * now, and needs less stack. */
int monarch_changed_file(int dir, const char *path, int follow);
/* Call this after the program's call with this path has succeeded. A process without the library
 * may have replaced the file at `path` after the daemon's scan. If the catalog still has the old
 * file, records that the old file has changed. */
void monarch_changed_known(int dir, const char *path, int follow);
void monarch_changed_fd(int fd);
/* Records a change of the file at `path`. If this file is a directory, also records a change of all
 * files below it. */
void monarch_changed_tree(int dir, const char *path);

/* Call this before a call that changes the file at `path`. Records the change, like
 * monarch_changed_path. Returns the path that the caller must pass to the changing call. Usually,
 * this is `path`.
 *
 * If `path` leads to a copy (for example, /proc/self/fd/N), writes the path of the source's file to
 * `real` (MONARCH_PATH_MAX bytes), and returns `real`. If the source's file is no longer at its
 * path, `real` is the empty string: the changing call then fails with ENOENT, and changes no other
 * file. */
const char *monarch_path_to_change(int dir, const char *path, int follow, char *real);
/* Does the same as monarch_path_to_change, but needs less stack, and records only a change of the
 * file that is at the path now. If the catalog may have another file for this path, call
 * monarch_changed_known after the changing call. */
const char *monarch_file_to_change(int dir, const char *path, int follow, char *real);
/* Call this before a call that changes the file of the descriptor `fd`. Records the change. Usually
 * returns NULL: the caller must then make the change by `fd` itself. If `fd` is a descriptor of a
 * copy, writes the path of the source's file to `real`, as monarch_path_to_change does, and returns
 * `real`. The caller must then change the file at this path. */
const char *monarch_fd_to_change(int fd, char *real);
/* monarch_is_copy returns whether `fd` is a descriptor of a copy. monarch_leads_to_copy returns
 * whether the path leads to a copy. For example, the name of a copy's descriptor in /proc leads to
 * the copy. If so, and if `real` is not NULL, both functions write the path of the source's file to
 * `real`. If that file is no longer at its path, they write the empty string instead. They record
 * no change. */
int monarch_is_copy(int fd, char *real);
int monarch_leads_to_copy(const char *path, char *real);
/* Does the same as monarch_leads_to_copy, but first checks whether the path begins like the name of
 * a descriptor in /proc or /dev. Nearly all paths fail this check, so they cost no system call. */
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

/* Returns whether open(2) with these flags uses its argument `mode`. O_TMPFILE contains the bit of
 * O_DIRECTORY. An open with O_DIRECTORY alone has no argument `mode`, so all bits of O_TMPFILE are
 * compared. */
static inline int monarch_needs_mode(int flags) {
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
}

/* Returns whether an open with these flags may change the file or create one. O_TRUNC changes the
 * file even with O_RDONLY. The access mode O_WRONLY | O_RDWR counts too: on Linux, it only allows
 * ioctl, but the open requires write permission. */
static inline int monarch_may_change(int flags) {
    return (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) || monarch_needs_mode(flags);
}

/* Returns whether a call with these arguments concerns the file of the directory descriptor itself,
 * and not a file in that directory: `path` is empty, and `flags` contains AT_EMPTY_PATH. */
int monarch_means_descriptor(const char *path, int flags);

/* Call this when the name `path` is created or removed. Records that the listing of its directory
 * is no longer valid. */
void monarch_changed_names(int dir, const char *path);
/* Does the same as monarch_changed_names, but shortens `path` in place instead of copying it. */
void monarch_changed_names_of(int dir, char *path);
/* Call this after an open of `path` that may have created the file but does not change an existing
 * file. Records that the listing of the file's directory is no longer valid. fd: the opened file.
 * real: a buffer of MONARCH_PATH_MAX bytes. */
void monarch_made(int fd, int dir, const char *path, char *real);
/* Call this after an open of `path` for writing. Records a change of the opened file `fd`. created:
 * 1 if the open may have created the file. If so, also records that the listing of the file's
 * directory is no longer valid. Returns the same value as monarch_fd_to_change. */
const char *monarch_opened_for_change(int fd, int created, int dir, const char *path, char *real);
