/* Reads this process's files in /proc, for example to list its descriptors and threads. */
#pragma once

#include <stdint.h>

struct monarch_reader {
    int fd;
    long have, at;
    char buf[2048]; /* the buffer is small, because some callers have a small stack */
};

int monarch_reader_open(struct monarch_reader *r, const char *path);
void monarch_reader_close(const struct monarch_reader *r);

/* Returns the next character, or 0 at the end of the file. */
char monarch_reader_next(struct monarch_reader *r);

/* Calls act(fd, data) for each descriptor in this thread's table. Returns whether the whole table
 * was listed. */
int monarch_for_descriptors(void (*act)(int fd, void *data), void *data);
/* Returns whether all threads of this process share one table of descriptors. If the kernel cannot
 * compare tables (kcmp), the result is 1. */
int monarch_have_one_table(void);

/* Returns whether a thread of this process sleeps in the system call `call` with these first and
 * fourth arguments. Does not count a thread that a tracer or a seccomp filter has stopped before
 * the call. Returns 0 if /proc cannot be read. */
int monarch_sleeps_in(long call, uint64_t first, uint64_t fourth);

/* Returns the offset of a descriptor, or 0 if /proc cannot be read. Unlike lseek, this function
 * does not wait for another thread's read. */
uint64_t monarch_offset_of(int fd);

/* Writes to `out` (MONARCH_PATH_MAX bytes) the path that the kernel reports for an open file.
 * Returns 0 if the kernel reports no path. If the file was renamed or removed since the open, the
 * path may lead to no file or to another file. */
int monarch_name_of(int fd, char *out);
