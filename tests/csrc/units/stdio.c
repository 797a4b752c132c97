#include "preload/calls/stdio.c"

#include "made.h"

/* The findings of content_of about the last stream: whether an executed program would inherit
 * the stream's descriptor, whether the descriptor's offset was used, and the inode of its file. */
static int is_inherited, was_offset_used;
static uint64_t inode;

/* Reads the stream's content, and closes the stream. error: errno after the stream was opened.
 * Returns the number of bytes, or -errno. */
static int64_t content_of(FILE *f, int error, char *out, uint64_t room) {
    struct stat st = {.st_ino = 0};
    if (!f)
        return -error;
    if (error != 54321)
        return -9999;
    int fd = fileno(f);
    is_inherited = !(sys_fcntl(fd, F_GETFD, 0) & FD_CLOEXEC);
    was_offset_used = (monarch_tracked(fd) & TRACK_OFFSET) != 0;
    sys_fstat(fd, &st);
    inode = st.st_ino;
    int64_t n = (int64_t)fread(out, 1, room, f);
    return fclose(f) == 0 ? n : -8888;
}
/* Opens a stream. Returns what content_of returns for it. */
EXPORT int64_t stdio_open(const char *path, const char *mode, char *out, uint64_t room) {
    errno = 54321;
    FILE *f = fopen(path, mode);
    return content_of(f, errno, out, room);
}
/* Opens a stream for reading on the path `first`, and then opens it again by freopen. Returns what
 * content_of returns for it. */
EXPORT int64_t stdio_reopen(const char *first, const char *path, const char *mode, char *out,
                            uint64_t room) {
    FILE *f = fopen(first, "r");
    if (!f)
        return -7777;
    errno = 54321;
    f = freopen(path, mode, f);
    return content_of(f, errno, out, room);
}
EXPORT uint64_t stdio_inode(void) { return inode; }
EXPORT int stdio_is_inherited(void) { return is_inherited; }
EXPORT int stdio_was_offset_used(void) { return was_offset_used; }
EXPORT int stdio_only_reads(const char *mode) { return only_reads(mode); }
