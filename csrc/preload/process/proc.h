/* Reads what /proc says of this process, without buffers for whole lines. */
#pragma once

#include <stdint.h>

struct monarch_reader {
    int fd;
    long have, at;
    char buf[2048]; /* some readers have a small stack */
};

int monarch_reader_open(struct monarch_reader *r, const char *path);
void monarch_reader_close(const struct monarch_reader *r);

/* The next character; 0 at the end. */
char monarch_reader_next(struct monarch_reader *r);

/* Calls act(fd, data) for each descriptor of this thread's table; returns whether all were met. */
int monarch_for_descriptors(void (*act)(int fd, void *data), void *data);
/* Whether all threads share one table of descriptors, as far as the kernel compares them. */
int monarch_have_one_table(void);

/* Whether a thread of this process sleeps in the system call `call` with these first and fourth
 * arguments: inside the kernel, not held before the call by a tracer or a filter. 0 without
 * /proc. */
int monarch_sleeps_in(long call, uint64_t first, uint64_t fourth);

/* The offset of a descriptor; 0 without /proc. Unlike lseek it does not wait for another thread's
 * read. */
uint64_t monarch_offset_of(int fd);
