/* What the cases of processes.c share. */
#ifndef MONARCH_TESTS_PROCESSES_H
#define MONARCH_TESTS_PROCESSES_H
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

extern char **environ;
extern const char *self;           /* this program's path */
extern const char *here, *outside; /* the case's directories, in the source and beside it */

/* The path of a name in `here`, and of one in `outside`; each call gives memory of its own. */
const char *in(const char *name);
const char *out(const char *name);
const char *joined(const char *directory, const char *name);

/* Prints what a call returned, with the error's name; returns it. */
long say_as(const char *what, long result);
#define SAY(call) say_as(#call, (long)(call))
#define CHECK(condition) ((condition) ? (void)0 : fail(__FILE__, __LINE__, #condition))
void fail(const char *file, int line, const char *what) __attribute__((noreturn));

/* A descriptor for reading of a name in `here`: under the library it is one of the copy. */
int reading(const char *name);
/* Where the offset stands, and the digest of what follows it, read from there. */
void tell_rest(const char *what, int fd);
/* Whether the descriptor says that it is the file of that name in `here`, and whether the name's
 * content is what was planted. */
void tell_file(const char *what, int fd, const char *name);
/* Bit N is set if the descriptor N is open. */
uint64_t open_descriptors(void);
uint64_t digest_of(const void *data, size_t n, uint64_t start);

/* Runs it in a forked child, whose output comes before what is printed next. Prints the signal that
 * ended it, if one did. */
void in_child(const char *what, void (*run)(void *), void *argument);
void reap(const char *what, pid_t child);
/* This program again, with another case; for execv and posix_spawn. */
char *const *command(const char *name);

/* Root from here on may do what any user may. */
void drop_rights(void);

struct process_case {
    const char *name;
    void (*run)(void);
};
extern const struct process_case of_start[], of_place[], of_checks[], of_harsh[];

/* --- the interposed calls, one by one: processes_calls.c --- */

enum kind {
    OPENS,     /* a file for reading; returns the descriptor */
    STREAMS,   /* the same with stdio; returns the FILE */
    LOOKS,     /* attributes */
    LISTS,     /* a directory; returns the DIR */
    CHANGES,   /* a file that stays */
    MAKES,     /* a file that is not there; returns the descriptor */
    TAKES,     /* a file away */
    TAKES_DIR, /* an empty directory away */
    MOVES,     /* a file to `other` */
    LINKS,     /* a file to `other` as well */
    ENTERS,    /* a directory */
    BY_FD      /* `dir` is a descriptor of the file */
};

struct call {
    const char *name;
    enum kind kind;
    int at; /* takes a directory descriptor */
    long (*run)(int dir, const char *path);
};
extern const struct call calls[];

/* The ways to say where a file is. */
enum form { ABSOLUTE, RELATIVE, ODD, BY_DIRFD, THROUGH_LINK, UPWARDS, FORMS };
extern const char *const form_names[];

/* One successful call with what it needs before and leaves behind; everything but the call itself
 * goes around the library. */
struct trial {
    const struct call *call;
    enum form form;
    const char *name; /* of the file in `here`; NULL: one that suits the kind */
    long result;
    int error;            /* errno after it; SENTINEL before */
    unsigned char *paint; /* NULL, or the lowest byte of the stack: measures it */
    size_t stack;         /* that the call took [bytes] */
    uint64_t opened;      /* descriptors, as open_descriptors() has them, while it was open */
};
#define SENTINEL 12345
void try_call(struct trial *trial);
void set_other(int dir, const char *path); /* the second path of calls that take two */

#endif
