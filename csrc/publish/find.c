/* Finds entries in the catalog: either the entries with given paths, or the entries of a
 * directory's files that have no copy. */
#include <string.h>

#include "native.h"
#include "shared/claims.h"
#include "shared/clock.h"

static int64_t find_behind_links(const struct monarch_control *k, const struct monarch_clients *m,
                                 const struct monarch_catalog *c, unsigned source,
                                 const char *path) {
    char text[MONARCH_PATH_MAX];
    struct monarch_place place = {.path = text};
    monarch_resolve(k, c, m, k->source[source].path, path, 1, &place);
    return place.entry < 0 ? -1 : place.entry;
}

void monarch_find_all(const struct monarch_control *k, const struct monarch_clients *m,
                      const struct monarch_catalog *c, unsigned source, const char *prefix,
                      uint64_t prefix_len, const char *pool, const uint64_t *starts, uint64_t n,
                      int64_t *ids) {
    char path[MONARCH_PATH_MAX];
    for (uint64_t i = 0; i < n; i++) {
        uint64_t len = starts[i + 1] - starts[i];
        ids[i] = -1;
        if (starts[i + 1] < starts[i] || prefix_len + len >= sizeof path)
            continue;
        memcpy(path, prefix, prefix_len);
        memcpy(path + prefix_len, pool + starts[i], len);
        path[prefix_len + len] = 0;
        ids[i] = monarch_find(c, source, path, prefix_len + len);
        if (ids[i] < 0 || monarch_entries(c)[ids[i]].kind == MONARCH_LINK)
            ids[i] = find_behind_links(k, m, c, source, path);
    }
}

static int lies_in(const struct monarch_catalog *c, const struct monarch_entry *e,
                   const char *directory, uint64_t length, int is_deep) {
    const char *path = monarch_pool(c, e->path);
    uint64_t name = length ? length + 1 : 0;
    if (e->path_len <= name || memcmp(path, directory, length) != 0 ||
        (length && path[length] != '/'))
        return 0;
    return is_deep || !memchr(path + name, '/', e->path_len - name);
}

uint64_t monarch_find_absent(const struct monarch_catalog *c, const struct monarch_clients *m,
                             unsigned source, const char *directory, uint64_t length, int is_deep,
                             uint64_t *at, uint64_t looks, uint64_t *ids, uint64_t max) {
    uint64_t now = monarch_now_ns(), n = 0, count = __atomic_load_n(&c->count, __ATOMIC_ACQUIRE);
    /* Entries numbered MONARCH_MAX_FILES or higher have no bits in struct monarch_bits. Programs
     * always read such files from the source, so these files need no copies. */
    uint64_t files = count < MONARCH_MAX_FILES ? count : MONARCH_MAX_FILES;
    uint64_t end = looks < files && *at < files - looks ? *at + looks : files;
    for (; *at < end && n < max; ++*at) {
        const struct monarch_entry *e = &monarch_entries(c)[*at];
        /* If the entry's word is 0, the file has no copy, nothing prevents a copy, and no old copy
         * is being removed. */
        if (e->kind == MONARCH_FILE && e->source == source &&
            __atomic_load_n(&e->word, __ATOMIC_RELAXED) == 0 &&
            lies_in(c, e, directory, length, is_deep) &&
            !monarch_is_being_read(m, *at, e->ino, now))
            ids[n++] = *at;
    }
    return n;
}
