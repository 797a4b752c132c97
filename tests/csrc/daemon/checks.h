/* Declarations that the tests in this folder share. Each C file here includes one or two C files of
 * the daemon. So its tests can call the static functions of the included files, use their structs,
 * and replace the functions that the included files call. Each C file here is linked with main.c
 * and the rest of the daemon's C part into a program of its own (test_daemon_units.py). */
#pragma once

#include <stdlib.h>

#include "copy/state.h"
#include "publish/writer.h"
#include "stress.h"

/* Defines a test. Each test runs in a process of its own, in an empty directory. The sanitizers
 * report memory that a test does not free. */
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

/* --- functions for the tests (main.c) --------------------------------------------------------- */

/* Returns how many descriptors this process has open. */
int open_descriptors(void);
/* Makes a file of `size` bytes, computed from `seed`. Returns a descriptor that is open for reading
 * and writing. */
int make_file(const char *path, uint64_t size, unsigned seed);
/* Makes an engine without threads. Its segments and tables are in this process's own memory. */
struct monarch_engine *make_engine(uint64_t block_bytes);
void free_engine(struct monarch_engine *e);
/* Makes an empty catalog in this process's own memory. */
struct monarch_catalog *make_catalog(uint64_t capacity);
/* Adds an entry for the path and returns it. The entry's other fields are those of `like`, which
 * must not be a link. */
struct monarch_entry *add_entry(struct monarch_catalog *c, const char *path,
                                struct monarch_entry like);
/* Makes an order to copy the regular file at `path`, relative to the directory `root`. The order
 * contains the attributes that the file has now. The copy gets the number `copy` and lies in the
 * directory `copies`. */
struct job *make_job(int root, int copies, const char *path, uint64_t copy);
