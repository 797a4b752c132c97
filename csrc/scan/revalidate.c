/* Detects changes at the source: from time to time, compares the catalog's directories and their
 * files with the source, and marks those that have changed. */
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "native.h"

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

/* Compares the files of a changed directory with the source, and marks those that differ. Returns
 * how many of the directory's names the catalog has. */
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
    /* Without a listing, the entries of the directory's names may be anywhere in the catalog, so
     * all entries are checked. Some names may have no entry. */
    for (uint64_t id = 0; id < count; id++)
        if (table[id].source == d->source &&
            monarch_catalog_parent(x->catalog, &table[id]) == d - table) {
            compare_file(x, &table[id]);
            n++;
        }
    return n;
}

/* Stores the directory's current times in its entry, so that the next comparison detects a further
 * change. No reader sees these times, because readers ask the source about a directory that is
 * marked as changed. If the daemon moves the catalog to a new segment during the call, the times
 * are lost. The directory's files are then compared once more than necessary. */
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
        /* The times are stored before the names are compared, so that the next call detects a
         * change during the comparison. Before the catalog has listings (is_listed = 0), no times
         * are stored, so each call compares the directory's files again. The scan may still add
         * files whose attributes it has read before this call, and they must be compared too. */
        if (is_listed)
            note_times(&x, e);
        looked += compare_names(&x, e);
    }
    return others;
}
