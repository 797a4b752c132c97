/* Shared by the files of the program `change`: change.c, change_content.c, change_names.c and
 * change_fds.c. */
#ifndef MONARCH_TESTS_CHANGE_H
#define MONARCH_TESTS_CHANGE_H
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern const char *here;    /* the operation's directory in the source, as given by argv */
extern const char *outside; /* a directory outside the source, on the same file system */

/* in() returns the path of a name in `here`, and out() the path of a name in `outside`. The path is
 * in newly allocated memory. */
const char *in(const char *name);
const char *out(const char *name);

/* Prints the value that a call returned, and the name of its error. Returns the value. */
long say_as(const char *what, long result);
#define SAY(call) say_as(#call, (long)(call))

/* Opens a file of `here` for reading and returns the descriptor. Under the library, this is a
 * descriptor of the file's copy. */
int reading(const char *name);

struct operation {
    const char *name;
    void (*run)(void);
};
extern const struct operation by_name[], by_descriptor[], of_names[];

#endif
