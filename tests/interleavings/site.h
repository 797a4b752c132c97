/* The session that the trials run in: its segments, its files, and what lies in its directories.
 *
 * The program is a client and the daemon at once: the library inside it is attached to the session
 * of MONARCH_CONFIG, of which no other daemon is there. Everything here goes past the library. */
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
#define MOST_COPIES 8 /* of a run */

extern struct site {
    const char *root; /* with the directories `source`, `tier`, where copies lie, and `kept` */
    struct monarch_control *control;
    struct monarch_clients *clients;
    struct monarch_fills *fills;
    struct monarch_catalog *catalog;
    struct monarch_writer *writer;
    uint64_t ids[FILES];
} site;

/* Makes the files and their entries, once. */
void set_up(const char *root);
/* What was met in all runs, besides what the library counts. */
enum met { HANDED_OVER, OPENED_AGAIN, READ_BY_HANDED };
void note_met(enum met what);
uint64_t times_met(enum met what);

/* Before each run, in the process that all runs are forked from: everything that is shared is as it
 * was after set_up. */
void restore(void);
/* At the beginning of a run; and after it: no descriptor is left that was not there then. */
void note_descriptors(void);
void check_descriptors(void);
/* What the library calls behind itself is a step from here on. */
void stand_behind_the_library(void);

/* The bytes of a file say which one it is, which version of it, and where they lie. */
uint64_t size_of(unsigned file);
/* The version that these bytes are of; what is not of the file, or of two versions, is wrong. */
unsigned version_of(unsigned file, const uint64_t *got, uint64_t from, uint64_t n);
/* [from, from + n) of a file; the file is made when it is not there. */
void put_bytes(const char *path, unsigned file, unsigned version, uint64_t from, uint64_t n);

const char *path_of(const char *directory, const char *name);
const char *name_of_copy(unsigned number);
unsigned make_copy(unsigned file, unsigned version, uint64_t n);
void drop_copy(unsigned number);
uint64_t inode_of(const char *path);
int raw_open(const char *path, int flags);
uint64_t now_ns(void);

#endif
