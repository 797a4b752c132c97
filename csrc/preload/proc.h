/* What /proc says of this process, read without room for lines. */
#ifndef MONARCH_PROC_H
#define MONARCH_PROC_H

#include <stdint.h>

struct monarch_reader {
    int fd;
    long have, at;
    char buf[2048]; /* some that read have a small stack */
};

int monarch_reader_open(struct monarch_reader *r, const char *path);
void monarch_reader_close(const struct monarch_reader *r);

/* The next character; 0 at the end. */
char monarch_reader_next(struct monarch_reader *r);

/* Calls act(fd, data) for each descriptor of this process. */
void monarch_for_descriptors(void (*act)(int fd, void *data), void *data);

#endif
