/* The test decides which allocation fails. */
#include <stdlib.h>

static int left = -1; /* number of allocations that still succeed; -1: all succeed */
static int is_out(void) { return left == 0 || (left > 0 && left-- == 0); }
static void *take_memory(size_t n) { return is_out() ? NULL : malloc(n); }
static void *grow_memory(void *at, size_t n) { return is_out() ? NULL : realloc(at, n); }
#define malloc(n) take_memory(n)
#define realloc(at, n) grow_memory(at, n)
#include "preload/calls/directories.c"
#undef malloc
#undef realloc

#include <stdio.h>

#include "made.h"

EXPORT void *listing_open(const char *path) { return opendir(path); }
EXPORT int listing_is_ours(void *d) { return ours(d) != NULL; }
EXPORT int listing_count(const struct session *s) { return (int)s->listings; }
EXPORT int listing_used(void) {
    int n = 0;
    for (int i = 0; i < DIRECTORIES; i++)
        n += (int)pool[i].used;
    return n;
}
/* Reads the next entry, by readdir or readdir_r. Writes its name to `name`, and its inode, offset,
 * type and length to `out`. Returns 1 if there was an entry, 0 at the end of the directory, -1 if
 * errno has changed, and -2 if readdir_r has failed. */
EXPORT int listing_next(void *d, int is_reentrant, char *name, int64_t *out) {
    struct dirent mine, *e = NULL;
    errno = 54321;
    if (!is_reentrant)
        e = readdir(d);
    else if (readdir_r(d, &mine, &e) != 0)
        return -2;
    if (errno != 54321)
        return -1;
    if (!e)
        return 0;
    strcpy(name, e->d_name);
    out[0] = (int64_t)e->d_ino;
    out[1] = e->d_off;
    out[2] = e->d_type;
    out[3] = e->d_reclen;
    return 1;
}
EXPORT int64_t listing_tell(void *d) { return telldir(d); }
EXPORT void listing_seek(void *d, int64_t at) { seekdir(d, at); }
EXPORT int listing_rewind(void *d) {
    errno = 54321;
    rewinddir(d);
    return errno == 54321;
}
EXPORT int listing_fd(void *d) {
    int fd = dirfd(d);
    return fd < 0 ? -errno : fd;
}
EXPORT int listing_close(void *d) { return closedir(d); }
EXPORT void listing_memory(int allocations) { left = allocations; }
EXPORT void listing_lacks_fdopendir(int is) { monarch_real.fdopendir = is ? (void *)1 : NULL; }

static int has_errno;
static int has_long_name(const struct dirent *e) {
    has_errno |= errno != 0;
    errno = 7;
    return strlen(e->d_name) > 3;
}
static int backwards(const struct dirent **a, const struct dirent **b) {
    return strcmp((*b)->d_name, (*a)->d_name);
}
/* Writes the names to `out`, each followed by a '/'. Returns the number of names, or -errno. dir:
 * the directory's descriptor for scandirat, or -1 for scandir. */
EXPORT int listing_whole(int dir, const char *path, int chooses, int sorts, char *out) {
    struct dirent **names = NULL;
    choose_fn *choose = chooses ? has_long_name : NULL;
    compare_fn *compare = sorts ? backwards : NULL;
    has_errno = 0;
    errno = 54321;
    int n = dir < 0 ? scandir(path, &names, choose, compare)
                    : scandirat(dir, path, &names, choose, compare);
    if (n < 0 || errno != 54321 || has_errno)
        return n < 0 ? -errno : -9999;
    for (int i = 0; i < n; i++) {
        out += sprintf(out, "%s/", names[i]->d_name);
        free(names[i]);
    }
    free(names);
    return n;
}
