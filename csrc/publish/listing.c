/* Makes the catalog's listings. A listing contains the names in a directory. */
#include <stdlib.h>
#include <string.h>

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

/* Like monarch_catalog_parent, but first tries the directory `last`, in which the previous entry
 * lies. Successive entries mostly lie in the same directory. */
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

/* Returns the first free index in `names`. An earlier call has used the smaller indices, for the
 * listings of the sources below `from`. */
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
        /* If the directory has more names than the catalog has room for, some of its names have no
         * entry, so the directory gets no listing. */
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
            /* A client has reported this file, but the scan has not found the same file in the
             * directory. So the directory has changed, and its names from the scan are out of
             * date. */
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
