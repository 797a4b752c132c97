#include "preload/session/copies.h"

#include <string.h>

#include "shared/path.h"
#include "shared/sys.h"

int monarch_source_path(const struct session *s, const struct monarch_catalog *c,
                        const struct monarch_entry *e, char *real) {
    const struct monarch_source *source = &s->control->source[e->source];
    if (source->path_len + 1u + e->path_len >= MONARCH_PATH_MAX)
        return 0;
    memcpy(real, source->path, source->path_len);
    real[source->path_len] = '/';
    memcpy(real + source->path_len + 1, monarch_pool(c, e->path), e->path_len + 1u);
    return 1;
}

int monarch_is_as_scanned(const struct session *s, const struct monarch_entry *e,
                          const struct stat *st) {
    return st->st_ino == e->ino && st->st_dev == s->control->source[e->source].dev &&
           (uint64_t)st->st_size == e->size &&
           monarch_time_ns(st->st_mtim.tv_sec, st->st_mtim.tv_nsec) == e->mtime_ns &&
           monarch_time_ns(st->st_ctim.tv_sec, st->st_ctim.tv_nsec) == e->ctime_ns;
}

/* --- from a copy to its file ------------------------------------------------------------------ */

/* Returns whether a file with this mode may be a copy. Few other files have the mode of a copy, so
 * most of them need no search in the catalog. */
int monarch_has_mode_of_copy(unsigned mode) {
    return (mode & (S_IFMT | 07777)) == (S_IFREG | 0400);
}

/* Returns whether `st` describes the entry's copy. The caller has found the entry by the inode
 * number. A new file may get the inode number of a removed copy, so the size must match too. If
 * the entry is not PRESENT, `st` can only describe a copy that was dropped but is still open.
 * Usually, such a copy has no name any more, and its link count is 0. If the link count is not 0,
 * the copy's name must lead to the file that `st` describes. */
static int is_copy_of(const struct session *s, const struct monarch_entry *e,
                      const struct stat *st) {
    uint64_t word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
    char path[MONARCH_COPY_PATH];
    struct stat now;
    if ((uint64_t)st->st_size != e->size)
        return 0;
    if (MONARCH_WORD_STATE(word) == MONARCH_PRESENT || !st->st_nlink)
        return 1;
    monarch_copy_path(s, word, path);
    return sys_fstatat(AT_FDCWD, path, &now, AT_SYMLINK_NOFOLLOW) == 0 &&
           now.st_ino == st->st_ino && now.st_dev == st->st_dev;
}

static const struct monarch_entry *copy_in(const struct session *s, const struct monarch_catalog *c,
                                           unsigned tier, const struct stat *st) {
    int is_stamped = c->stamped == tier + 1, may_be = is_stamped || (c->evicting >> tier & 1);
    int64_t id = may_be ? monarch_find_stamped(c, tier, st->st_ino, st->st_mtim.tv_sec,
                                               st->st_mtim.tv_nsec, !st->st_nlink)
                        : -1;
    if (id < 0 && !is_stamped)
        id = st->st_nlink ? monarch_find_copy(c, tier, st->st_ino)
                          : monarch_find_dropped(c, tier, st->st_ino);
    return id >= 0 && is_copy_of(s, &monarch_entries(c)[id], st) ? &monarch_entries(c)[id] : NULL;
}

const struct monarch_entry *
monarch_behind_copy(struct session **s, const struct monarch_catalog **c, const struct stat *st) {
    if (!monarch_has_mode_of_copy(st->st_mode))
        return NULL;
    for (int newest = 1; *s; *s = __atomic_load_n(&(*s)->before, __ATOMIC_ACQUIRE), newest = 0) {
        int t = monarch_tier_on(*s, st->st_dev, 0);
        if (t < 0)
            continue;
        /* For an older session, no catalog is mapped here. A newly mapped catalog could belong to
         * the new daemon, because the catalogs of all daemons have the same names. */
        *c = newest ? monarch_catalog_of(*s) : __atomic_load_n(&(*s)->catalog, __ATOMIC_ACQUIRE);
        for (; *c && t >= 0; t = monarch_tier_on(*s, st->st_dev, t + 1)) {
            const struct monarch_entry *e = copy_in(*s, *c, (unsigned)t, st);
            for (int i = 0; !e && !st->st_nlink && i < MONARCH_OLDER; i++) {
                const struct monarch_catalog *older =
                    __atomic_load_n(&(*s)->older[i], __ATOMIC_ACQUIRE);
                if (older && (e = copy_in(*s, older, (unsigned)t, st)))
                    *c = older;
            }
            if (e)
                return e;
        }
    }
    return NULL;
}
