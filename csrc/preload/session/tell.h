/* Reports changed files to the daemon if the process lacks the address space to map the segments.
 *
 * Such a process has reached RLIMIT_AS or vm.max_map_count. It appends a record of each change to
 * the session's file `changes`. The daemon reads these records, and adds the changed files to the
 * changed filter (a Bloom filter in the segment `clients`). */
#pragma once

#include <sys/stat.h>

/* Returns 1 if this process has found a daemon at its last search, but lacked the address space to
 * map the session's segments. Otherwise returns 0. */
int monarch_lacks_room(void);

/* Tells the daemon that a file has changed. With is_tree = 1, tells it that a directory and
 * everything below it has changed. Does not report a file on a device that holds no source.
 * Returns whether the daemon was told. */
int monarch_tell_change(const struct stat *st, int is_tree);
