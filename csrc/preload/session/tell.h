/* Reports changed files to the daemon from a process that lacks the address space to map the
 * segments.
 *
 * Such a process has reached RLIMIT_AS or vm.max_map_count. It appends its changes to a file of the
 * session, and the daemon marks them in the changed filter. */
#pragma once

#include <sys/stat.h>

/* Whether the process's last search for a daemon found one, but the process lacked the address
 * space to attach to it. */
int monarch_lacks_room(void);

/* Tells the daemon that a file has changed or, with is_tree = 1, that a directory and everything
 * below it has changed. A file that is on no source's device is not reported. Returns whether the
 * daemon was told. */
int monarch_tell_change(const struct stat *st, int is_tree);
