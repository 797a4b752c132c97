/* For the tests beside this file. Each C file here includes a file of the daemon's C part, so that
 * its tests can call the static functions too, use the structs, and replace what the file calls.
 * With main.c and the rest of the daemon's C part, it makes a program (test_daemon_units.py). */
#pragma once

#include <stdlib.h>

#include "copy/state.h"
#include "publish/writer.h"
#include "stress.h"

/* Defines a test. Each test runs in a process of its own, in an empty directory. The sanitizers
 * also notice memory that a test leaves allocated. */
#define TEST(name)                                                                                 \
    static void name(void);                                                                        \
    __attribute__((constructor)) static void add_##name(void) { add_test(__FILE__, #name, name); } \
    static void name(void)

/* Compares two whole numbers. */
#define SAME(is, should_be)                                                            \
    do {                                                                               \
        long long is_ = (long long)(is), should_ = (long long)(should_be);             \
        if (is_ != should_)                                                            \
            die("%s:%d: %s is %lld, not %lld", __FILE__, __LINE__, #is, is_, should_); \
    } while (0)

void add_test(const char *file, const char *name, void (*run)(void));

/* --- what the tests share (main.c) ------------------------------------------------------------ */

/* Returns how many descriptors this process has. */
int open_descriptors(void);
/* Makes a file of `size` bytes that are computed from `seed`, and returns its descriptor, which can
 * read and write. */
int make_file(const char *path, uint64_t size, unsigned seed);
/* Makes an engine in memory of this process, without threads, with the segments and the tables
 * that it needs. */
struct monarch_engine *make_engine(uint64_t block_bytes);
void free_engine(struct monarch_engine *e);
/* Makes an empty catalog in memory of this process. */
struct monarch_catalog *make_catalog(uint64_t capacity);
/* Adds an entry like this one, which is not a link, and returns it. */
struct monarch_entry *add_entry(struct monarch_catalog *c, const char *path,
                                struct monarch_entry like);
/* Makes an order for the regular file at `path`, below the directory `root`, with the file's
 * present attributes. The order's copies lie in the directory `copies`. */
struct job *make_job(int root, int copies, const char *path, uint64_t copy);
