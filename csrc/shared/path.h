/* Resolves a path to the catalog's entry as the kernel would walk it, but without asking the
 * source. */
#pragma once

#include "shared/catalog.h"

#define MONARCH_PATH_MAX 4096

enum {
    MONARCH_OUTSIDE = -1, /* under no source, or a path that we cannot see through */
    MONARCH_UNKNOWN = -2, /* under a source, but the catalog does not (yet) know it */
};

struct monarch_place {
    int64_t entry; /* number, MONARCH_OUTSIDE or MONARCH_UNKNOWN */
    int32_t source;
    uint32_t path_len;
    char path[MONARCH_PATH_MAX]; /* relative to the source */
};

/* The number of the source whose path or alias is a prefix of the absolute path, of `n` bytes; -1
 * if none is. *rel gets the rest of the path behind the slash; it is empty for the root itself. */
int monarch_prefix(const struct monarch_control *k, const char *path, size_t n, const char **rel);

/* Whether the path, of `n` bytes, holds `//`, `.` or `..` as a component, or ends in a slash. */
int monarch_is_odd(const char *path, size_t n);

/* Whether an absolute path leads to no source, judged by its letters alone, without a system call.
 * A link before a `..` may still make it lead to one; only the kernel can tell, as for any link
 * outside the sources. */
int monarch_is_outside(const struct monarch_control *k, const char *path);

/* Whether the path may hold `..`: two dots side by side. */
int monarch_may_go_up(const char *path);

/* Resolves `path` into *out. A relative path starts from the canonical directory `base`, which may
 * be out->path itself because callers may be on small stacks; nothing else of *out is read. With
 * follow = 0 a link as the last component is not followed. The file system is asked (lstat) only
 * about components outside every source that a later `..` leaves again. */
void monarch_resolve(const struct monarch_control *k, const struct monarch_catalog *c,
                     const struct monarch_clients *m, const char *base, const char *path,
                     int follow, struct monarch_place *out);
