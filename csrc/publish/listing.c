/* The daemon's side of listings. A listing names what a directory contains. This file makes the
 * listings, and checks whether a directory still contains what its listing names. */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "native.h"

#define NOBODY 0xFFFFFFFFU

static size_t length_of_parent(const char *path, size_t len) {
    while (len && path[len - 1] != '/')
        len--;
    return len ? len - 1 : 0;
}

int64_t monarch_catalog_parent(const struct monarch_catalog *c, const struct monarch_entry *e) {
    const char *path = monarch_pool(c, e->path);
    return e->path_len ? monarch_find(c, e->source, path, length_of_parent(path, e->path_len)) : -1;
}

void monarch_catalog_unlist(struct monarch_catalog *c, int64_t directory) {
    struct monarch_entry *table = (struct monarch_entry *)((char *)c + c->entries_at);
    if (directory >= 0 && table[directory].kind == MONARCH_DIR)
        __atomic_store_n(&table[directory].copy_ino, 0, __ATOMIC_SEQ_CST);
}

/* Does what monarch_catalog_parent does, but tries the directory `last` first, because successive
 * entries mostly lie in the same directory. */
static int64_t parent_of(const struct monarch_catalog *c, const struct monarch_entry *e,
                         int64_t last) {
    const char *path = monarch_pool(c, e->path);
    size_t n = length_of_parent(path, e->path_len);
    if (last >= 0) {
        const struct monarch_entry *d = &monarch_entries(c)[last];
        if (e->path_len && d->path_len == n && d->source == e->source &&
            memcmp(monarch_pool(c, d->path), path, n) == 0)
            return last;
    }
    return monarch_catalog_parent(c, e);
}

static int is_complete(const uint32_t *names, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (names[i] == NOBODY)
            return 0;
    return 1;
}

/* Returns the first free index in `names`. All smaller indices belong to the sources with numbers
 * below `from`, whose listings were made by an earlier call. */
static uint64_t names_used(const struct monarch_catalog *c, unsigned from) {
    uint64_t used = 0;
    for (uint64_t id = 0; id < c->count; id++) {
        const struct monarch_entry *d = &monarch_entries(c)[id];
        uint64_t end = d->kind == MONARCH_DIR && d->source < from && d->sum
                           ? monarch_listing_first(d->sum) + monarch_listing_length(d->sum)
                           : 0;
        used = end > used ? end : used;
    }
    return used;
}

int64_t monarch_catalog_list(struct monarch_catalog *c, int64_t young_ns, unsigned from) {
    struct monarch_entry *table = (struct monarch_entry *)((char *)c + c->entries_at);
    uint32_t *names = (uint32_t *)((char *)c + c->names_at);
    uint64_t used = names_used(c, from);
    int64_t parent = -1, listed = 0;
    uint32_t *first = malloc((c->count + 1) * sizeof *first);
    if (!first)
        return -1;
    memset(names + used, 0xFF, (c->capacity - used) * sizeof *names);
    for (uint64_t id = 0; id < c->count; id++) {
        if (table[id].source < from)
            continue;
        uint64_t n = table[id].kind == MONARCH_DIR && table[id].sum ? table[id].sum - 1 : 0;
        first[id] = (uint32_t)used;
        /* there are more names than entries, so some names have no entry */
        if (n > c->capacity - used)
            table[id].sum = 0;
        else
            used += n;
    }
    for (uint64_t id = 0; id < c->count; id++) {
        if (table[id].source < from)
            continue;
        parent = parent_of(c, &table[id], parent);
        if (table[id].place == MONARCH_NO_PLACE) {
            /* a client found this file after its directory was walked, so not all names are
             * known */
            if (parent >= 0)
                table[parent].sum = 0;
            continue;
        }
        if (parent >= 0 && table[parent].kind == MONARCH_DIR &&
            table[id].place + 1ULL < table[parent].sum)
            names[first[parent] + table[id].place] = (uint32_t)id;
    }
    for (uint64_t id = 0; id < c->count; id++) {
        struct monarch_entry *d = &table[id];
        if (d->kind != MONARCH_DIR || !d->sum || d->source < from)
            continue;
        d->sum =
            is_complete(names + first[id], d->sum - 1) ? monarch_listing(first[id], d->sum - 1) : 0;
        if (d->sum && d->mtime_ns < young_ns && d->ctime_ns < young_ns) {
            __atomic_store_n(&d->copy_ino, d->sum, __ATOMIC_SEQ_CST);
            listed++;
        }
    }
    free(first);
    return listed;
}

/* --- whether a listing still holds ------------------------------------------------------------ */

/* Returns the mount's id. Older headers do not define this field of struct statx; it follows the
 * device. */
static uint64_t mount_of(const struct statx *x) {
    uint64_t id;
    memcpy(&id, &x->stx_dev_minor + 1, sizeof id);
    return id;
}

void monarch_read_masks(int root, struct monarch_filesystem *f) {
    struct statx x;
    for (int i = 0; i < 2; i++) {
        unsigned mask = i ? STATX_BASIC_STATS | STATX_BTIME : STATX_BASIC_STATS;
        if (statx(root, "", AT_EMPTY_PATH, mask, &x) != 0)
            return;
        f->statx_mask[i] = x.stx_mask;
    }
    f->attributes_mask = x.stx_attributes_mask;
    f->mount = mount_of(&x);
}

void monarch_read_filesystem(int root, struct monarch_filesystem *f) {
    struct statfs s;
    monarch_read_masks(root, f);
    if (fstatfs(root, &s) != 0)
        return;
    f->type = s.f_type;
    f->bsize = s.f_bsize;
    f->frsize = s.f_frsize;
    f->namelen = s.f_namelen;
    f->flags = s.f_flags;
    f->blocks = s.f_blocks;
    f->bfree = s.f_bfree;
    f->bavail = s.f_bavail;
    f->files = s.f_files;
    f->ffree = s.f_ffree;
    memcpy(f->fsid, &s.f_fsid, sizeof f->fsid);
}

/* Opens a directory to read its names. Returns NULL if that fails. */
static DIR *open_names(int root, const char *path) {
    int fd = openat(root, *path ? path : ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *names = fd >= 0 ? fdopendir(fd) : NULL;
    if (!names && fd >= 0)
        close(fd);
    return names;
}

static int is_same(int root, const struct monarch_catalog *c, const struct monarch_entry *e) {
    struct monarch_entry now;
    char target[MONARCH_PATH_MAX];
    return monarch_stat_entry(root, e->source, monarch_pool(c, e->path), &now, target,
                              sizeof target) == 0 &&
           now.kind == e->kind && now.ino == e->ino && now.mtime_ns == e->mtime_ns &&
           now.ctime_ns == e->ctime_ns && now.size == e->size;
}

static int lists(DIR *names, const struct monarch_catalog *c, const struct monarch_entry *d) {
    uint64_t i = 0, n = monarch_listing_length(d->sum);
    const uint32_t *ids = monarch_names(c) + monarch_listing_first(d->sum);
    if (!d->sum)
        return 0;
    size_t skip = d->path_len ? d->path_len + 1U : 0;
    for (struct dirent *found; (found = readdir(names));) {
        if (strcmp(found->d_name, ".") == 0 || strcmp(found->d_name, "..") == 0)
            continue;
        if (i == n ||
            strcmp(found->d_name, monarch_pool(c, monarch_entries(c)[ids[i++]].path) + skip) != 0)
            return 0;
    }
    return i == n;
}

int monarch_listing_holds(const struct monarch_catalog *c, int root, uint64_t directory) {
    const struct monarch_entry *d = &monarch_entries(c)[directory];
    DIR *names = open_names(root, monarch_pool(c, d->path));
    int holds = names && is_same(root, c, d) && lists(names, c, d);
    if (names)
        closedir(names);
    return holds;
}

struct comparison {
    const struct monarch_catalog *catalog;
    struct monarch_clients *clients;
    uint64_t dev;
    int root, is_listed;
};

static void compare_file(const struct comparison *x, const struct monarch_entry *e) {
    if (e->kind != MONARCH_OTHER && e->kind != MONARCH_DIR && !is_same(x->root, x->catalog, e))
        monarch_mark_changed(x->clients, x->dev, e->ino);
}

/* Compares the files of a changed directory with the source, and marks the files that differ.
 * Returns how many names of the directory the catalog has. */
static uint64_t compare_names(const struct comparison *x, const struct monarch_entry *d) {
    const struct monarch_entry *table = monarch_entries(x->catalog);
    uint64_t listing = x->is_listed ? d->sum : 0,
             count = __atomic_load_n(&x->catalog->count, __ATOMIC_ACQUIRE), n = 0;
    if (listing) {
        const uint32_t *ids = monarch_names(x->catalog) + monarch_listing_first(listing);
        for (; n < monarch_listing_length(listing); n++)
            compare_file(x, &table[ids[n]]);
        return n;
    }
    /* Without a listing, the catalog may know only some of the directory's names, and the entries
     * of these names may be anywhere in the catalog. */
    for (uint64_t id = 0; id < count; id++)
        if (table[id].source == d->source &&
            monarch_catalog_parent(x->catalog, &table[id]) == d - table) {
            compare_file(x, &table[id]);
            n++;
        }
    return n;
}

/* Stores the directory's current times in its entry. These times only serve to detect the
 * directory's next change. No reader sees them: the directory is marked as changed, so readers ask
 * the source about it. If the catalog is replaced during the call, the times are lost. The
 * directory's files are then compared once more than needed. */
static void note_times(const struct comparison *x, const struct monarch_entry *d) {
    struct monarch_entry *mine = (struct monarch_entry *)d, now;
    char target[1];
    if (monarch_stat_entry(x->root, d->source, monarch_pool(x->catalog, d->path), &now, target,
                           sizeof target) != 0)
        return;
    mine->mtime_ns = now.mtime_ns;
    mine->ctime_ns = now.ctime_ns;
    mine->size = now.size;
}

uint64_t monarch_compare_directories(const struct monarch_catalog *c, struct monarch_clients *m,
                                     const struct monarch_source *source, unsigned number, int root,
                                     int is_listed, uint64_t *at, uint64_t max) {
    struct comparison x = {c, m, source->dev, root, is_listed};
    uint64_t others = 0, looked = 0, count = __atomic_load_n(&c->count, __ATOMIC_ACQUIRE);
    for (; *at < count && looked < max; ++*at) {
        const struct monarch_entry *e = &monarch_entries(c)[*at];
        if (e->source != number)
            continue;
        if (e->kind != MONARCH_DIR) {
            /* A file that a client found after the scan is in no listing, so it is compared
             * individually. */
            if (e->place == MONARCH_NO_PLACE && !monarch_is_changed(m, source->dev, e->ino)) {
                compare_file(&x, e);
                looked++;
            }
            continue;
        }
        looked++;
        if (is_same(root, c, e))
            continue;
        others += !monarch_is_changed(m, source->dev, e->ino);
        monarch_mark_changed(m, source->dev, e->ino);
        /* The times are stored before the names are compared, so that the next call sees a change
         * that happens during the comparison. While the catalog has no listings, the old times
         * stay. So each call takes the directory for changed, and compares its files again. This is
         * needed because the scan may still add names that it looked at before the change. */
        if (is_listed)
            note_times(&x, e);
        looked += compare_names(&x, e);
    }
    return others;
}
