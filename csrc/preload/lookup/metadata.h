/* Answers calls about a path from the catalog, in place of the source. The catalog answers only for
 * files that exist. Only the source can answer that a file does not exist, because a process
 * without the library may have created the file since the scan. */
#pragma once

#include "preload/lookup/where.h"
#include "preload/process/attributes.h"

struct monarch_known {
    struct session *session;
    const struct monarch_catalog *catalog;
    const struct monarch_entry *entry;
    /* the entry's version when its attributes were read, for monarch_is_same_version */
    uint32_t version;
};

int monarch_know_near(int dir, const char *path, int follow, struct monarch_known *k);

/* Returns whether the catalog has an entry for the file to which `path` leads, and may answer calls
 * of this process. If so, *k refers to the entry. The functions below find out which calls the
 * catalog can answer for this entry. */
static inline int monarch_know(int dir, const char *path, int follow, struct monarch_known *k) {
    MAYBE_NULL(path);
    return path && !monarch_leads_nowhere(dir, path) && monarch_know_near(dir, path, follow, k);
}

/* Returns whether the catalog can answer with the entry's attributes. For a directory, the catalog
 * must also have a valid listing. Otherwise a program that compares the directory's times before
 * and after listing the directory could miss a change. */
int monarch_can_tell(const struct monarch_known *k);

/* Returns whether the entry still has the attributes that it had at the look-up of *k. Call this
 * after reading the attributes: if the daemon has begun to replace them, the values that were read
 * may be partly old and partly new. */
int monarch_is_same_version(const struct monarch_known *k);

/* Returns whether the directories were compared with the source within the last `revalidate_ns`
 * (struct monarch_control). If they were not, requests another comparison from the daemon. */
int monarch_is_fresh(struct session *s);

/* Returns the listing of a directory, or 0 if the last look at the directory (metadata.c) is no
 * longer valid. */
uint64_t monarch_listing_of(const struct monarch_known *k);
/* Returns the listing of a directory, or 0 if the directory may have changed. If no earlier look at
 * the source is valid, looks at the source with a statx of `path`. The caller must have found the
 * entry by this `path`. */
uint64_t monarch_look_and_list(const struct monarch_known *k, int dir, const char *path);

/* Counts a call that the catalog has answered in place of the source. */
static inline void monarch_count_told(const struct monarch_known *k) {
    __atomic_fetch_add(&monarch_my_stats(k->session)->metadata_hits, 1, __ATOMIC_RELAXED);
}
