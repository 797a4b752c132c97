/* Reports changes of a process that has no room to map a daemon's segments.
 *
 * The limit is RLIMIT_AS or vm.max_map_count. The changes are written to files of the session, and
 * the daemon marks them in the changed filter. */
#pragma once

#include <sys/stat.h>

/* Whether, when this process last looked for a daemon, one served that it had no room to attach
 * to. */
int monarch_lacks_room(void);

/* Tells such a daemon that a file has changed, or (is_tree) a directory with all that is below it.
 * Returns whether it was told, which it is only of files on a source's device. */
int monarch_tell_change(const struct stat *st, int is_tree);
