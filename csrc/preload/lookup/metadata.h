/* Answers calls such as stat from the catalog instead of the source.
 *
 * The catalog answers only for files that it contains. Only the source can say that a file does not
 * exist, because a process without the library may have created the file since the scan. */
#pragma once

#include "preload/lookup/where.h"
#include "preload/process/attributes.h"

struct monarch_known {
    struct session *session;
    const struct monarch_catalog *catalog;
    const struct monarch_entry *entry;
    /* the entry's version before its attributes are read; see monarch_is_same_version */
    uint32_t version;
};

int monarch_know_near(int dir, const char *path, int follow, struct monarch_known *k);

/* Looks up the file to which `path` leads. Returns whether the catalog has an entry for this file
 * and may answer calls of this process. If so, sets *k for the functions below, which check
 * whether the catalog can answer a certain call. */
static inline int monarch_know(int dir, const char *path, int follow, struct monarch_known *k) {
    MAYBE_NULL(path);
    return path && !monarch_leads_nowhere(dir, path) && monarch_know_near(dir, path, follow, k);
}

/* Returns whether the catalog can answer a call for the file's attributes. For a directory, the
 * catalog must also have a valid listing. Otherwise, the times would come from the catalog, but
 * the listing from the source. A program that compares the times before and after the listing
 * could then miss a change. */
int monarch_can_tell(const struct monarch_known *k);

/* Call this after reading the entry's attributes. Returns whether they are unchanged since
 * monarch_know has found the entry. If the result is 0, do not use the values: the daemon has
 * begun to replace them, so some may be old and others new. */
int monarch_is_same_version(const struct monarch_known *k);

/* Returns whether the daemon's last comparison of the catalog with the source began less than
 * `revalidate_ns` ago (struct monarch_control). If not, asks the daemon for another comparison. */
int monarch_is_fresh(struct session *s);

/* Returns the catalog's listing of a directory. Returns 0 if another look must come first. A look
 * is a check at the source whether the directory has changed. */
uint64_t monarch_listing_of(const struct monarch_known *k);
/* Returns the catalog's listing of a directory, or 0 if the directory may have changed. If the
 * last look was too long ago, makes another look: calls statx for `path` at the source. path: the
 * path by which the caller has found the entry. */
uint64_t monarch_look_and_list(const struct monarch_known *k, int dir, const char *path);

/* Counts a call that the catalog has answered in place of the source. */
static inline void monarch_count_told(const struct monarch_known *k) {
    __atomic_fetch_add(&monarch_my_stats(k->session)->metadata_hits, 1, __ATOMIC_RELAXED);
}
