/* Shared by the files of the program `processes`. */
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
extern const char *here, *outside; /* the case's directories, in the source and outside it */

/* in() returns the path of a name in `here`, out() the path of a name in `outside`, and joined()
 * the path of a name in a directory. The path is in newly allocated memory. */
const char *in(const char *name);
const char *out(const char *name);
const char *joined(const char *directory, const char *name);

/* Prints what a call returned and the name of its error. Returns the same value as the call. */
long say_as(const char *what, long result);
#define SAY(call) say_as(#call, (long)(call))
#define CHECK(condition) ((condition) ? (void)0 : fail(__FILE__, __LINE__, #condition))
void fail(const char *file, int line, const char *what) __attribute__((noreturn));

/* Opens a file of `here` for reading and returns the descriptor. Under the library, this is a
 * descriptor of the file's copy. */
int reading(const char *name);
/* Reads from the descriptor's offset to the end of the file. Prints the offset, the number of bytes
 * read and their digest. */
void tell_rest(const char *what, int fd);
/* Prints whether the descriptor and the name in `here` have the same inode and device. Also prints
 * the mode and size that fstat returns for the descriptor. */
void tell_file(const char *what, int fd, const char *name);
/* Returns a bitmap of the descriptors 0 to 63: bit N is set if descriptor N is open. */
uint64_t open_descriptors(void);
uint64_t digest_of(const void *data, size_t n, uint64_t start);

/* Runs `run` in a forked child and waits for the child, so that the child's output comes before
 * what the parent prints next. If the child fails, prints the signal or the status with which it
 * ended. */
void in_child(const char *what, void (*run)(void *), void *argument);
void reap(const char *what, pid_t child);
/* Returns the command line that runs this program with another case, for execv and posix_spawn. */
char *const *command(const char *name);

/* Drops all capabilities of this process, so that root has only the rights of an ordinary user. */
void drop_rights(void);

struct process_case {
    const char *name;
    void (*run)(void);
};
extern const struct process_case of_start[], of_place[], of_checks[], of_harsh[];

/* --- the interposed calls, one by one: processes_calls.c --- */

enum kind {
    OPENS,     /* opens a file for reading; returns the descriptor */
    STREAMS,   /* opens a file for reading with stdio; returns the FILE */
    LOOKS,     /* queries a file, and leaves nothing open */
    LISTS,     /* opens a directory; returns the DIR */
    CHANGES,   /* changes a file that exists, and does not remove it */
    MAKES,     /* makes a file that does not exist yet */
    TAKES,     /* removes a file */
    TAKES_DIR, /* removes an empty directory */
    MOVES,     /* renames a file to `other` */
    LINKS,     /* makes `other` a hard link to a file */
    ENTERS,    /* lists or enters a directory, and leaves nothing open */
    BY_FD      /* uses `dir`, which is a descriptor of the file, instead of the path */
};

struct call {
    const char *name;
    enum kind kind;
    int at; /* whether the call takes a directory descriptor */
    long (*run)(int dir, const char *path);
};
extern const struct call calls[];

/* The ways to name a file by a path. */
enum form { ABSOLUTE, RELATIVE, ODD, BY_DIRFD, THROUGH_LINK, UPWARDS, FORMS };
extern const char *const form_names[];

/* One call of the table, and its result. try_call prepares what the call needs, and cleans up what
 * it leaves. For this it mostly uses system calls that bypass the library. */
struct trial {
    const struct call *call;
    enum form form;
    const char *name; /* name of the file in `here`; NULL: a name that suits the kind of call */
    long result;
    int error; /* errno after the call; it is SENTINEL before the call */
    /* lowest byte of the stack whose use is to be measured; NULL: it is not measured */
    unsigned char *paint;
    size_t stack; /* stack that the call used [bytes] */
    /* open_descriptors() right after the call, before a descriptor from the call is closed */
    uint64_t opened;
};
#define SENTINEL 12345
void try_call(struct trial *trial);
void set_other(int dir, const char *path); /* sets the second path, for calls that take two */

#endif
