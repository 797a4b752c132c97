/* What the programs of operations share (change.c, change_names.c, change_fds.c). */
#ifndef MONARCH_TESTS_CHANGE_H
#define MONARCH_TESTS_CHANGE_H
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern const char *here;    /* the operation's directory in the source, as it was given */
extern const char *outside; /* a directory outside the source, on the same file system */

/* The path of a name in `here`, and of one in `outside`; each call gives memory of its own. */
const char *in(const char *name);
const char *out(const char *name);

/* Prints what a call returned, with the error's name; returns it. */
long say_as(const char *what, long result);
#define SAY(call) say_as(#call, (long)(call))

/* A descriptor for reading: under the library it is one of the copy. */
int reading(const char *name);

struct operation {
    const char *name;
    void (*run)(void);
};
extern const struct operation by_name[], by_descriptor[], of_names[];

#endif
