/* Resolves a path to the catalog's entry as the kernel would walk it, but without asking the
 * source. */
#pragma once

#include "shared/catalog.h"

#define MONARCH_PATH_MAX 4096

enum {
    MONARCH_OUTSIDE = -1, /* under no source, or a path that only the kernel can resolve */
    MONARCH_UNKNOWN = -2, /* under a source, but the catalog does not (yet) know it */
};

struct monarch_place {
    int64_t entry; /* the entry's number, MONARCH_OUTSIDE or MONARCH_UNKNOWN */
    int32_t source;
    uint32_t path_len;
    char path[MONARCH_PATH_MAX]; /* relative to the source */
};

/* Returns the number of the source whose path or alias is a prefix of the absolute path `path` (`n`
 * bytes), or -1. *rel gets the rest of the path behind the slash; the rest is empty if the path is
 * the source's root. */
int monarch_prefix(const struct monarch_control *k, const char *path, size_t n, const char **rel);

/* Whether the path (`n` bytes) holds `//` or a component `.` or `..`, or ends in a slash. */
int monarch_is_odd(const char *path, size_t n);

/* Whether an absolute path leads to no source, judged by its text alone, without a system call. A
 * link outside the sources, or one before a `..`, may still make the path lead to a source; only
 * the kernel can tell. */
int monarch_is_outside(const struct monarch_control *k, const char *path);

/* Whether the path holds two dots side by side, and so perhaps a component `..`. */
int monarch_may_go_up(const char *path);

/* Resolves `path` into *out. A relative path starts from the canonical directory `base`. `base` may
 * be out->path itself, which saves a buffer to callers on small stacks; nothing else of *out is
 * read. With follow = 0 a link as the last component is not followed. The file system is asked
 * (lstat) only about a component before a `..`, and only if the catalog cannot tell whether that
 * component is a directory. */
void monarch_resolve(const struct monarch_control *k, const struct monarch_catalog *c,
                     const struct monarch_clients *m, const char *base, const char *path,
                     int follow, struct monarch_place *out);
