/* What the catalog may say of a path, so that the source need not be asked: whether it is there, as
 * what, and with which attributes. */
#ifndef MONARCH_METADATA_H
#define MONARCH_METADATA_H

#include "attributes.h"
#include "where.h"

enum monarch_answer {
    MONARCH_ASK,     /* the source: nothing of ours, or any doubt */
    MONARCH_THERE,   /* `entry` is what the path leads to */
    MONARCH_MISSING, /* the source has nothing of this name (ENOENT) */
};

struct monarch_known {
    struct session *session;
    const struct monarch_catalog *catalog;
    const struct monarch_entry *entry;
    uint32_t version; /* of the entry's attributes, see monarch_is_same_version */
};

enum monarch_answer monarch_know_near(int dir, const char *path, int follow,
                                      struct monarch_known *k);

static inline enum monarch_answer monarch_know(int dir, const char *path, int follow,
                                               struct monarch_known *k) {
    MAYBE_NULL(path);
    if (!path || monarch_is_far(dir, path))
        return MONARCH_ASK;
    return monarch_know_near(dir, path, follow, k);
}

/* After the entry's attributes were read: whether they belong together. */
int monarch_is_same_version(const struct monarch_known *k);

/* Whether what was compared with the source is young enough to be told. If not, the daemon hears of
 * it. */
int monarch_is_fresh(struct session *s);

/* The listing of a directory that can be told, 0 if there is none: changed, or not compared with
 * the source for too long. Then the daemon hears of it. */
uint64_t monarch_listing_of(struct session *s, const struct monarch_catalog *c,
                            const struct monarch_entry *e);

#endif
