/* Lists directories from the catalog, for opendir, readdir and scandir.
 *
 * A directory that is listed from the catalog has no descriptor at first. If the program calls
 * dirfd, the library opens the source's directory. Any other way of listing a directory reads the
 * source: nftw, glob and fts, which list directories inside libc; open with O_DIRECTORY; and
 * fdopendir. */
#include <dirent.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "preload/lookup/metadata.h"
#include "preload/process/calls.h"
#include "preload/session/copies.h"
#include "shared/sys.h"

/* Maximum number of listings from the catalog that are open at a time. If this many are open,
 * opendir lists the source. */
#define DIRECTORIES 256

struct directory {
    uint32_t used; /* atomic */
    int fd;        /* descriptor of the source's directory; -1: not opened yet */
    DIR *real;     /* stream of the source's directory; NULL: the catalog gives the names */
    struct monarch_known of;
    uint64_t listing, at; /* at: position of the next name; `.` is at 0, `..` is at 1 */
    struct dirent found;
};

/* The library's own directory streams. The address of a DIR shows whether it is one of these
 * streams or a stream of libc. */
static struct directory pool[DIRECTORIES] SELDOM;

static struct directory *ours(DIR *d) {
    uintptr_t offset = (uintptr_t)d - (uintptr_t)pool;
    return offset < sizeof pool ? &pool[offset / sizeof *pool] : NULL;
}

static struct directory *take(void) {
    for (unsigned i = 0; i < DIRECTORIES; i++) {
        uint32_t free_one = 0;
        if (!__atomic_load_n(&pool[i].used, __ATOMIC_RELAXED) &&
            __atomic_compare_exchange_n(&pool[i].used, &free_one, 1, 0, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED))
            return &pool[i];
    }
    return NULL;
}

static void give_back(struct directory *d) {
    __atomic_fetch_sub(&d->of.session->listings, 1, __ATOMIC_ACQ_REL);
    __atomic_store_n(&d->used, 0, __ATOMIC_RELEASE);
}

/* Opens a stream that lists the directory from the catalog. Returns NULL if the directory must be
 * listed at the source. */
static struct directory *open_listing(int dir, const char *path) {
    struct monarch_known k;
    struct directory *d;
    uint64_t listing = monarch_know(dir, path, 1, &k) ? monarch_look_and_list(&k, dir, path) : 0;
    if (!listing || !(d = take()))
        return NULL;
    d->fd = -1;
    d->real = NULL;
    d->of = k;
    /* While this count of open listings is not 0, the session's catalog stays mapped. */
    __atomic_fetch_add(&k.session->listings, 1, __ATOMIC_ACQ_REL);
    d->listing = listing;
    d->at = 0;
    monarch_count_told(&k);
    return d;
}

PUBLIC DIR *opendir(const char *path) {
    struct directory *d = open_listing(AT_FDCWD, path);
    if (d)
        return (DIR *)d;
    DIR *real = REAL(opendir)(path);
    if (real && __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE))
        monarch_learn_listed(path, REAL(dirfd)(real));
    return real;
}

/* --- names ------------------------------------------------------------------------------------ */

static uint64_t inode_above(const struct directory *d) {
    const struct monarch_entry *e = d->of.entry;
    if (!e->path_len)
        return d->of.session->control->source[e->source].up_ino;
    const char *path = monarch_pool(d->of.catalog, e->path);
    const char *slash = memrchr(path, '/', e->path_len);
    int64_t above =
        monarch_find(d->of.catalog, e->source, path, slash ? (size_t)(slash - path) : 0);
    return above >= 0 ? monarch_entries(d->of.catalog)[above].ino : e->ino;
}

/* Stores the name at position `at` in *out. Returns 0 if there are no more names. */
static int get(const struct directory *d, uint64_t at, struct dirent *out) {
    const struct monarch_entry *e = d->of.entry;
    const char *name = "..";
    size_t n = at + 1;
    if (at >= monarch_listing_length(d->listing) + 2)
        return 0;
    if (at < 2) {
        out->d_ino = at ? inode_above(d) : e->ino;
        out->d_type = DT_DIR;
    } else {
        uint64_t id = monarch_names(d->of.catalog)[monarch_listing_first(d->listing) + at - 2];
        size_t skip = e->path_len ? e->path_len + 1U : 0;
        if (id >= d->of.catalog->capacity) /* the listing is damaged */
            return 0;
        e = &monarch_entries(d->of.catalog)[id];
        out->d_ino = e->ino;
        out->d_type = (unsigned char)IFTODT(e->mode);
        name = monarch_pool(d->of.catalog, e->path) + skip;
        n = e->path_len > skip ? e->path_len - skip : 0;
        if (!n || n >= sizeof out->d_name)
            return 0;
    }
    out->d_off = (off_t)(at + 1);
    out->d_reclen = (unsigned short)((offsetof(struct dirent, d_name) + n + 8) & ~(size_t)7);
    memcpy(out->d_name, name, n);
    out->d_name[n] = 0;
    return 1;
}

PUBLIC struct dirent *readdir(DIR *stream) {
    struct directory *d = ours(stream);
    if (!d || d->real)
        return REAL(readdir)(d ? d->real : stream);
    if (!get(d, d->at, &d->found))
        return NULL;
    d->at++;
    return &d->found;
}

PUBLIC int readdir_r(DIR *stream, struct dirent *entry, struct dirent **result) {
    struct directory *d = ours(stream);
    if (!d || d->real)
        return REAL(readdir_r)(d ? d->real : stream, entry, result);
    *result = get(d, d->at, entry) ? entry : NULL;
    d->at += *result != NULL;
    return 0;
}

PUBLIC long telldir(DIR *stream) {
    struct directory *d = ours(stream);
    return d && !d->real ? (long)d->at : REAL(telldir)(d ? d->real : stream);
}

PUBLIC void seekdir(DIR *stream, long at) {
    struct directory *d = ours(stream);
    if (!d || d->real)
        REAL(seekdir)(d ? d->real : stream, at);
    else
        d->at = (uint64_t)at;
}

/* --- the source's directory ------------------------------------------------------------------- */

static int open_source(struct directory *d) {
    char path[MONARCH_PATH_MAX];
    int fd = -ENAMETOOLONG;
    if (monarch_source_path(d->of.session, d->of.catalog, d->of.entry, path))
        fd = sys_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
    return (int)monarch_result(fd);
}

PUBLIC int dirfd(DIR *stream) {
    struct directory *d = ours(stream);
    if (!d || d->real)
        return REAL(dirfd)(d ? d->real : stream);
    if (d->fd < 0)
        d->fd = open_source(d);
    return d->fd;
}

static int is_still_listed(const struct directory *d) {
    char path[MONARCH_PATH_MAX];
    return monarch_source_path(d->of.session, d->of.catalog, d->of.entry, path) &&
           monarch_look_and_list(&d->of, AT_FDCWD, path) == d->listing;
}

/* After rewinddir, the program must see the directory's present names. If the catalog's listing is
 * no longer valid, the source's directory is listed from now on. */
PUBLIC void rewinddir(DIR *stream) {
    struct directory *d = ours(stream);
    if (!d || d->real) {
        REAL(rewinddir)(d ? d->real : stream);
        return;
    }
    d->at = 0;
    if (is_still_listed(d))
        return;
    /* If the source's directory cannot be opened, the program continues with the old names. */
    int old_errno = errno;
    if (d->fd < 0)
        d->fd = open_source(d);
    if (d->fd >= 0 && REAL(fdopendir))
        d->real = REAL(fdopendir)(d->fd);
    errno = old_errno;
}

PUBLIC int closedir(DIR *stream) {
    struct directory *d = ours(stream);
    if (!d)
        return REAL(closedir)(stream);
    DIR *real = d->real;
    int fd = real ? -1 : d->fd;
    give_back(d);
    if (real)
        return REAL(closedir)(real);
    return fd >= 0 ? REAL(close)(fd) : 0;
}

/* --- whole listings --------------------------------------------------------------------------- */

struct list {
    struct dirent **names;
    size_t used, room;
};

static int keep(struct list *l, const struct dirent *e) {
    if (l->used == l->room) {
        size_t room = l->room ? l->room * 2 : 32;
        struct dirent **more = realloc(l->names, room * sizeof *more);
        if (!more)
            return 0;
        l->names = more;
        l->room = room;
    }
    struct dirent *copy = malloc(e->d_reclen);
    if (!copy)
        return 0;
    l->names[l->used++] = memcpy(copy, e, e->d_reclen);
    return 1;
}

typedef int choose_fn(const struct dirent *);
typedef int compare_fn(const struct dirent **, const struct dirent **);

static int list_all(struct directory *d, struct dirent ***names, choose_fn *choose,
                    compare_fn *compare) {
    struct list l = {NULL, 0, 0};
    int old_errno = errno, done = 1;
    for (; done && get(d, d->at, &d->found); d->at++) {
        errno = 0; /* libc's scandir does the same before each call of `choose` */
        if (!choose || choose(&d->found))
            done = keep(&l, &d->found);
    }
    give_back(d);
    if (!done) {
        while (l.used)
            free(l.names[--l.used]);
        free(l.names);
        errno = ENOMEM;
        return -1;
    }
    if (compare && l.used)
        qsort(l.names, l.used, sizeof *l.names, (int (*)(const void *, const void *))compare);
    *names = l.names;
    errno = old_errno;
    return (int)l.used;
}

PUBLIC int scandir(const char *path, struct dirent ***names, choose_fn *choose,
                   compare_fn *compare) {
    struct directory *d = open_listing(AT_FDCWD, path);
    return d ? list_all(d, names, choose, compare) : REAL(scandir)(path, names, choose, compare);
}

PUBLIC int scandirat(int dir, const char *path, struct dirent ***names, choose_fn *choose,
                     compare_fn *compare) {
    struct directory *d = open_listing(dir, path);
    return d ? list_all(d, names, choose, compare)
             : REAL(scandirat)(dir, path, names, choose, compare);
}

TWIN(readdir64, readdir)
TWIN(readdir64_r, readdir_r)
TWIN(scandir64, scandir)
TWIN(scandirat64, scandirat)
