/* Reports file changes to the daemon from a process that has no room to map the daemon's segments.
 *
 * Such a process has reached RLIMIT_AS or vm.max_map_count. The changes are written to files of the
 * session, and the daemon marks them in the changed filter. */
#pragma once

#include <sys/stat.h>

/* Whether this process, when it last looked for a daemon, found one to which it had no room to
 * attach. */
int monarch_lacks_room(void);

/* Tells the daemon that a file has changed or, with is_tree = 1, a directory and all that is below
 * it. Returns whether the daemon was told. It is told only of files on a source's device. */
int monarch_tell_change(const struct stat *st, int is_tree);
