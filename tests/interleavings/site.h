/* The session in which the trials run: its segments, its files, and its directories.
 *
 * The program is both a client and the daemon. The library is linked into it, and attached to the
 * session of MONARCH_CONFIG, which has no other daemon. The functions here make their system calls
 * directly, not through the library. */
#ifndef SITE_H
#define SITE_H

#include "native.h"

enum { SMALL, OTHER, MEDIUM, LARGE, FILES };
extern const char *const names[FILES];
#define SMALL_BYTES 8192
#define MEDIUM_BYTES (MONARCH_UNIT + 8192) /* more than one unit */
#define LARGE_BYTES (3 * MONARCH_UNIT)
#define MOST_BYTES LARGE_BYTES
#define TIER 0
#define MOST_COPIES 8 /* number of copies that one run may make */

extern struct site {
    const char *root; /* contains the directories `source`, `tier` (with the copies) and `kept` */
    struct monarch_control *control;
    struct monarch_clients *clients;
    struct monarch_fills *fills;
    struct monarch_catalog *catalog;
    struct monarch_writer *writer;
    uint64_t ids[FILES];
} site;

/* Makes the files and their entries. Called once, before all runs. */
void set_up(const char *root);
/* Events that the trials count over all runs, in addition to the library's counters. */
enum met { HANDED_OVER, OPENED_AGAIN, READ_BY_HANDED };
void note_met(enum met what);
uint64_t times_met(enum met what);

/* Resets all shared data and files to their state after set_up. Called before each run, in the
 * process from which all runs are forked. */
void restore(void);
/* note_descriptors counts the open descriptors at the start of a run. check_descriptors requires
 * the same number at the end of the run. */
void note_descriptors(void);
void check_descriptors(void);
/* From now on, each call that the library makes to libc's functions (monarch_real) is a step. */
void stand_behind_the_library(void);

/* Each 8-byte word of a file contains the file's number, its version and the word's index. */
uint64_t size_of(unsigned file);
/* Returns the version of the `n` bytes at offset `from` of a file. Fails the run if a byte is not
 * of this file, or if the bytes are of two versions. */
unsigned version_of(unsigned file, const uint64_t *got, uint64_t from, uint64_t n);
/* Writes the bytes [from, from + n) of a file; makes the file if it does not exist. */
void put_bytes(const char *path, unsigned file, unsigned version, uint64_t from, uint64_t n);

const char *path_of(const char *directory, const char *name);
const char *name_of_copy(unsigned number);
unsigned make_copy(unsigned file, unsigned version, uint64_t n);
void drop_copy(unsigned number);
uint64_t inode_of(const char *path);
int raw_open(const char *path, int flags);
uint64_t now_ns(void);

#endif
