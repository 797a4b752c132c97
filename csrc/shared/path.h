/* Resolves a path to an entry of the catalog. Walks the path as the kernel would, but without
 * asking the source. */
#pragma once

#include "shared/catalog.h"

#define MONARCH_PATH_MAX 4096

enum {
    MONARCH_OUTSIDE = -1, /* the path leads to no source, or only the kernel can resolve it */
    MONARCH_UNKNOWN = -2, /* the path leads to a source, but has no entry in the catalog (yet) */
};

struct monarch_place {
    int64_t entry; /* the entry's number, MONARCH_OUTSIDE or MONARCH_UNKNOWN */
    int32_t source;
    uint32_t path_len;
    /* The path relative to the source. The caller provides MONARCH_PATH_MAX bytes for it. */
    char *path;
};

/* Returns the number of the source whose path or alias is a prefix of the absolute path `path` (`n`
 * bytes), or -1. *rel is set to the rest of the path, without the slash before it. For the source's
 * root, the rest is empty. */
int monarch_prefix(const struct monarch_control *k, const char *path, size_t n, const char **rel);

/* Returns whether the path (`n` bytes) has `//`, a component `.` or `..`, or a slash at its end.
 * The result is 0 for "/" itself. */
int monarch_is_odd(const char *path, size_t n);

/* Returns whether an absolute path seems to lead to no source. Looks only at the text and makes no
 * system call, so 1 may be wrong. If the path has a link outside the sources, or a link before a
 * `..`, it may still lead to a source. */
int monarch_is_outside(const struct monarch_control *k, const char *path);

/* Finds the first component of `rel`, except the last one, that is a link according to the catalog.
 * `rel` must not be empty. Returns the link's entry, or -1 if there is none. *end is set to the
 * position in `rel` at which the link's component ends. */
int64_t monarch_first_link(const struct monarch_catalog *c, unsigned source, const char *rel,
                           size_t *end);

/* Returns whether the path has two adjacent dots, and so may have a component `..`. */
int monarch_may_go_up(const char *path);

/* Resolves `path` into *out. A relative `path` starts from the directory `base`, an absolute path
 * without links. `base` may be out->path itself, to save a caller on a small stack another buffer.
 * follow = 0: if the last component is a link, it is not followed. The only system call is an lstat
 * of a component before a `..`, if the catalog does not know whether that component is a
 * directory. */
void monarch_resolve(const struct monarch_control *k, const struct monarch_catalog *c,
                     const struct monarch_clients *m, const char *base, const char *path,
                     int follow, struct monarch_place *out);
