/* Changes are recorded through these, before or while the interposed functions make them. */
#ifndef MONARCH_RECORD_H
#define MONARCH_RECORD_H

/* Records that a file is no longer what its copy is. Each returns at once when the path or the
 * descriptor lies on no source's device; the first says whether it does. `monarch_changed_tree` is
 * for renamed directories. */
int monarch_changed_path(int dir, const char *path, int follow);
void monarch_changed_fd(int fd);
void monarch_changed_tree(int dir, const char *path);

/* For a call that changes what `path` leads to: records it, and returns the path that the call is
 * to be given. That is `path`, unless it leads to a copy (/proc/self/fd/N and the like): then the
 * source file's, in `real` (MONARCH_PATH_MAX bytes), which is empty if that name leads to another
 * file by now: the call fails (ENOENT), and nobody else's file is changed. */
const char *monarch_path_to_change(int dir, const char *path, int follow, char *real);
/* The same for a descriptor; NULL if it is none of a copy, and so is what the call is to be given.
 */
const char *monarch_fd_to_change(int fd, char *real);
/* Whether the descriptor is one of a copy / the path is the name in /proc or /dev of one: then
 * `real` is as above, and nothing is recorded. */
int monarch_is_copy(int fd, char *real);
int monarch_names_copy(const char *path, char *real);

/* With the flag AT_EMPTY_PATH, an empty path is the descriptor itself. */
int monarch_means_descriptor(const char *path, int flags);

/* A name is made or removed: what is listed of the directory that `path` lies in holds no longer.
 */
void monarch_changed_names(int dir, const char *path);
/* After an open of `path` that may have made the file; `real` is room for a path. */
void monarch_made(int fd, int dir, const char *path, char *real);
/* After an open of `path` that may write, or make the file (`created`): records both. The path is
 * as in monarch_fd_to_change. */
const char *monarch_opened_for_change(int fd, int created, int dir, const char *path, char *real);

#endif
