/* Shared by the C readers: the files of the dataset, the transcript, and the table of readers. */
#ifndef MONARCH_TESTS_READERS_H
#define MONARCH_TESTS_READERS_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

enum {
    /* The size of a read [bytes]. It is a prime, so that reads do not end at a block's edge. */
    CHUNK = 100003,
};

struct file {
    char *path; /* absolute */
    char *name; /* the path relative to the dataset; points into `path` */
    off_t size; /* [bytes] */
};

extern const char *root;        /* the dataset's absolute path, without a slash at the end */
extern const char *reader_name; /* the name of the running reader */
extern struct file files[];     /* regular files of the dataset, sorted by path */
extern size_t file_count;

/* Readers that are called for each file: the name on the command line, and the function. */
#define FILE_READERS(X)                 \
    X(fopen, read_fopen)                \
    X(fopen64, read_fopen64)            \
    X(freopen, read_freopen)            \
    X(fdopen, read_fdopen)              \
    X(getline, read_lines)              \
    X(open, read_open)                  \
    X(open_2, read_open_2)              \
    X(openat, read_openat)              \
    X(pread, read_pread)                \
    X(vectors, read_vectors)            \
    X(mmap_private, read_mmap_private)  \
    X(mmap_shared, read_mmap_shared)    \
    X(fadvise, read_fadvise)            \
    X(sendfile, read_sendfile)          \
    X(copy_file_range, read_copy_range) \
    X(splice, read_splice)              \
    X(stat, look_stat)                  \
    X(xstat, look_xstat)                \
    X(fstatat, look_fstatat)            \
    X(statx, look_statx)                \
    X(locks, look_locks)                \
    X(vfork_exec, child_vfork)          \
    X(fork_inherit, child_fork)         \
    X(exec_inherit, child_exec_inherit)

/* Readers that are called once for the whole dataset. */
#define WHOLE_READERS(X)           \
    X(listings, list_all)          \
    X(close_range, close_by_range) \
    X(threads, read_in_threads)

#define DECLARE(name, function) void function(const struct file *file);
FILE_READERS(DECLARE)
#undef DECLARE
#define DECLARE(name, function) void function(void);
WHOLE_READERS(DECLARE)
#undef DECLARE

/* Prints the reader, the message and errno to standard error, and exits with the status 1. */
__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);

/* Returns `fd`; if it is negative, the program ends with an error message about the file. */
int checked(int fd, const struct file *file);

#define SUM_START UINT64_C(0xcbf29ce484222325)

/* Adds `data` to a 64-bit digest: returns the digest of the bytes of all calls so far. `sum` is the
 * result of the previous call, or SUM_START in the first call. */
uint64_t digest(uint64_t sum, const void *data, size_t size);

void tell(const struct file *file, const char *way, uint64_t size, uint64_t sum);
void tell_stat(const struct file *file, const char *way, const struct stat *status);

/* Read from the descriptor's offset to the end, and print the size and the digest. */
void drain(int fd, const struct file *file, const char *way);
void drain_and_close(int fd, const struct file *file, const char *way);

#endif
