/* Finds the files of a directory that have no copy yet. */
#include <string.h>

#include "native.h"
#include "shared/clock.h"

static int lies_in(const struct monarch_catalog *c, const struct monarch_entry *e,
                   const char *directory, uint64_t length, int is_deep) {
    const char *path = monarch_pool(c, e->path);
    uint64_t name = length ? length + 1 : 0;
    if (e->path_len <= name || memcmp(path, directory, length) != 0 ||
        (length && path[length] != '/'))
        return 0;
    return is_deep || !memchr(path + name, '/', e->path_len - name);
}

static int is_claimed(const struct monarch_clients *m, uint64_t id, uint64_t now_ns) {
    uint64_t claim = __atomic_load_n(&m->claim[id % MONARCH_CLAIMS], __ATOMIC_RELAXED);
    return monarch_claim_names(claim, id) && monarch_claim_holds(claim, now_ns);
}

/* If the file had no entry when the program claimed it, the claim is under monarch_unmet(ino). */
int monarch_is_being_read(const struct monarch_clients *m, uint64_t id, uint64_t ino,
                          uint64_t now_ns) {
    return is_claimed(m, id, now_ns) || is_claimed(m, monarch_unmet(ino), now_ns);
}

uint64_t monarch_find_absent(const struct monarch_catalog *c, const struct monarch_clients *m,
                             unsigned source, const char *directory, uint64_t length, int is_deep,
                             uint64_t *at, uint64_t looks, uint64_t *ids, uint64_t max) {
    uint64_t now = monarch_now_ns(), n = 0, count = __atomic_load_n(&c->count, __ATOMIC_ACQUIRE);
    /* Entries beyond MONARCH_MAX_FILES have no bits in monarch_bits, so the daemon could not learn
     * that programs open them, and does not fill them ahead. */
    uint64_t files = count < MONARCH_MAX_FILES ? count : MONARCH_MAX_FILES;
    uint64_t end = looks < files && *at < files - looks ? *at + looks : files;
    for (; *at < end && n < max; ++*at) {
        const struct monarch_entry *e = &monarch_entries(c)[*at];
        /* A word of 0 says that the file is ABSENT, that there is no reason not to copy it, and
         * that no old copy is still being removed. */
        if (e->kind == MONARCH_FILE && e->source == source &&
            __atomic_load_n(&e->word, __ATOMIC_RELAXED) == 0 &&
            lies_in(c, e, directory, length, is_deep) &&
            !monarch_is_being_read(m, *at, e->ino, now))
            ids[n++] = *at;
    }
    return n;
}
