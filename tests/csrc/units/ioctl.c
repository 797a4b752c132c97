#include "preload/calls/ioctl.c"

#include "made.h"

/* Sets the inode flags (chattr) of the descriptor's file. Returns 0, or -errno on failure. */
EXPORT int ioctl_set_flags(int fd, int flags) {
    return ioctl(fd, FS_IOC_SETFLAGS, &flags) == 0 ? 0 : -errno;
}
EXPORT int ioctl_is_of_source(uint64_t request) {
    return asks_file(request) || changes_file(request);
}
