/* Changes of a process that has no room to map a daemon's segments (RLIMIT_AS, vm.max_map_count):
 * they are written to files of the session, and the daemon marks them. */
#ifndef MONARCH_TELL_H
#define MONARCH_TELL_H

#include <sys/stat.h>

/* Whether a daemon serves that this process could not attach to for want of room, when it was last
 * looked for. */
int monarch_lacks_room(void);

/* Tells such a daemon that a file has changed, or (is_tree) a directory with all that is below it.
 * Whether it lies on a source's device. */
int monarch_tell_change(const struct stat *st, int is_tree);

#endif
