/* What the catalog tells of a path in place of the source. It only ever tells what is there: that
 * there is no such file is the source's to say, because a process without the library may have made
 * the file since the scan. */
#ifndef MONARCH_METADATA_H
#define MONARCH_METADATA_H

#include "preload/lookup/where.h"
#include "preload/process/attributes.h"

struct monarch_known {
    struct session *session;
    const struct monarch_catalog *catalog;
    const struct monarch_entry *entry;
    uint32_t version; /* of the entry's attributes, see monarch_is_same_version */
};

int monarch_know_near(int dir, const char *path, int follow, struct monarch_known *k);

/* Whether the catalog has an entry for what `path` leads to, and this process may be told of it.
 * What of it can be told, the functions below say. */
static inline int monarch_know(int dir, const char *path, int follow, struct monarch_known *k) {
    MAYBE_NULL(path);
    return path && !monarch_leads_nowhere(dir, path) && monarch_know_near(dir, path, follow, k);
}

/* Whether the entry's attributes can be told. Those of a directory can while its listing can, so
 * that a program which compares its times before and after it lists the directory sees a change. */
int monarch_can_tell(const struct monarch_known *k);

/* After the entry's attributes were read: whether they belong together. */
int monarch_is_same_version(const struct monarch_known *k);

/* Whether the last comparison of the directories with the source is younger than `revalidate`. If
 * not, the daemon hears of it. */
int monarch_is_fresh(struct session *s);

/* The listing of a directory, for as long as a look at the source holds; 0 if there is none. */
uint64_t monarch_listing_of(const struct monarch_known *k);
/* The same, with a look if none holds: one statx of `path`, which has led to the entry. */
uint64_t monarch_look_and_list(const struct monarch_known *k, int dir, const char *path);

/* The catalog has answered in place of the source. */
static inline void monarch_count_told(const struct monarch_known *k) {
    __atomic_fetch_add(&monarch_my_stats(k->session)->metadata_hits, 1, __ATOMIC_RELAXED);
}

#endif
