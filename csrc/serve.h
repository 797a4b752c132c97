/* Reads are served, and changes recorded, through these; the interposed functions only choose. */
#ifndef MONARCH_SERVE_H
#define MONARCH_SERVE_H

#include "where.h"

/* Room for the path of a copy. */
#define MONARCH_COPY_PATH (MONARCH_TIER_PATH + MONARCH_COPY_NAME)

/* For open-like calls: writes the path of the copy that serves this reading open and returns its
 * catalog entry; NULL sends the call to the source, and the daemon hears that it is wanted. */
const struct monarch_entry *monarch_copy_for(struct session *s, int dir, const char *path,
                                             int flags, char *copy);

void monarch_copy_path(const struct monarch_tier *tier, uint64_t number, char *out);

/* Counts an open that was served (from its copy or not). */
void monarch_count(struct session *s, const struct monarch_entry *e, int from_copy);

/* Records that a file is no longer what its copy is. Each returns at once when the path or the
 * descriptor lies on no source's device. `monarch_changed_tree` is for renamed directories. */
void monarch_changed_path(int dir, const char *path, int follow);
void monarch_changed_fd(int fd);
void monarch_changed_tree(int dir, const char *path);

/* If the descriptor is one of a copy: writes the path of its source file and returns 1. */
int monarch_source_path_of(int fd, char *path);

#endif
