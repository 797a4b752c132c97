/* Redirects ioctl requests from a copy to the source's file, if they concern the file's blocks,
 * inode flags or version.
 *
 * All other requests are passed on unchanged. */
#include <errno.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <sys/ioctl.h>

#include "preload/changes/record.h"
#include "preload/process/calls.h"
#include "preload/promotion/backing.h"
#include "preload/session/session.h"
#include "shared/sys.h"

/* Returns the descriptor on which a request about the source's file must be made. For a descriptor
 * of a copy, that is its backing descriptor, which refers to the source's file (backing.h).
 * Otherwise, it is `fd` itself. */
static int source_of(int fd) {
    int backing = monarch_backing_fd(fd);
    return backing >= 0 ? backing : fd;
}

/* Call this before a request that makes the file of `to` share blocks with the file of `from`.
 * Files can share blocks only within one file system. Returns the descriptor to use in place of
 * `from`: its backing descriptor if `from` is a descriptor of a copy and `to` is on a source's
 * device. Otherwise returns `from`. */
static int to_share(int from, int to) {
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    struct stat st;
    return s && sys_fstat(to, &st) == 0 && monarch_source_on(s, st.st_dev, 0) >= 0 ? source_of(from)
                                                                                   : from;
}

static int asks_file(unsigned long request) {
    return request == FS_IOC_FIEMAP || request == FIBMAP || request == FIGETBSZ ||
           request == FS_IOC_GETFLAGS || request == FS_IOC_GETVERSION ||
           request == FS_IOC_FSGETXATTR;
}

static int changes_file(unsigned long request) {
    return request == FS_IOC_SETFLAGS || request == FS_IOC_SETVERSION ||
           request == FS_IOC_FSSETXATTR;
}

/* Returns whether the `n` bytes at `at` can be read. If the library itself read unreadable memory,
 * the program would crash. So the caller passes such an address on to the kernel, and ioctl returns
 * EFAULT. */
static int can_be_read(const void *at, size_t n) {
    char copy[sizeof(struct file_clone_range)];
    struct iovec from = {(void *)at, n}, to = {copy, n};
    return n <= sizeof copy &&
           sys6(SYS_process_vm_readv, sys_getpid(), (long)&to, 1, (long)&from, 1, 0) == (long)n;
}

PUBLIC int ioctl(int fd, unsigned long request, ...) {
    va_list args;
    va_start(args, request);
    /* an integer argument arrives in the same register as a pointer, and is passed on unchanged */
    void *arg = va_arg(args, void *);
    va_end(args);
    if (__builtin_expect(!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE), 1))
        return REAL(ioctl)(fd, request, arg);
    request = (unsigned)request; /* the kernel uses only the lower 32 bits */
    if (request == FICLONE)      /* `arg` is the descriptor of the file to clone */
        return REAL(ioctl)(fd, request, (void *)(long)to_share((int)(long)arg, fd));
    if (request == FICLONERANGE && can_be_read(arg, sizeof(struct file_clone_range))) {
        struct file_clone_range range = *(struct file_clone_range *)arg;
        range.src_fd = to_share((int)range.src_fd, fd);
        return REAL(ioctl)(fd, request, &range);
    }
    if (asks_file(request))
        fd = source_of(fd);
    if (changes_file(request)) {
        int backing = monarch_backing_fd(fd);
        /* The backing descriptor could not be opened. The request fails, because it must not change
         * the copy instead of the source's file. */
        if (backing == -2) {
            errno = EMFILE;
            return -1;
        }
        fd = backing >= 0 ? backing : fd;
        monarch_changed_fd(fd);
    }
    return REAL(ioctl)(fd, request, arg);
}
