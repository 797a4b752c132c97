/* Paths as the process sees them: relative ones, those of directory descriptors, through links. */
#ifndef MONARCH_WHERE_H
#define MONARCH_WHERE_H

#include "preload/lookup/cwd.h"
#include "preload/lookup/links.h"

/* The same if this process has met no link into a source either. Asked before anything else. */
static inline int monarch_leads_nowhere(int dir, const char *path) {
    return !__atomic_load_n(&monarch_links_met, __ATOMIC_RELAXED) && monarch_is_far(dir, path);
}

/* Number of the catalog's entry for a path, MONARCH_OUTSIDE or MONARCH_UNKNOWN. *c becomes the
 * catalog that was asked; most processes never need one, and do not map it. */
int64_t monarch_locate(struct session *s, const struct monarch_catalog **c, int dir,
                       const char *path, int follow);

/* The same in two steps. A plain path, absolute and in a source, is looked up by `hash`. */
struct monarch_aim {
    const struct monarch_catalog *catalog;
    /* Not NULL: `skip` bytes of the path, by a link outside, are this directory of a source. */
    const struct monarch_entry *base;
    size_t skip;
    enum monarch_lead lead; /* how the path leads here, if not by its letters */
    uint32_t version;       /* by a file: that of its entry, see monarch_enter_file */
    int is_open;            /* asked for by an open: a file's own link is followed */
    int is_new;             /* by its letters the path leads nowhere, and no hint says more */
    const char *rel;        /* the path in the source */
    size_t len;
    uint64_t hash;
    int is_alias;   /* the path ends with what leads to the source, which may be a link */
    int64_t likely; /* what monarch_guess says, if it is asked; else -1 */
    int source;     /* -1: an odd path, which takes the slower, exact way */
};
/* 0: the path leads to nothing of ours, as far as can be seen from it. */
int monarch_aim(struct session *s, int dir, const char *path, int is_open, struct monarch_aim *a);
int64_t monarch_locate_aimed(struct session *s, struct monarch_aim *a, int dir, const char *path,
                             int follow);

/* The same with the place itself: the path relative to the source, links and dots resolved. */
void monarch_locate_place(struct session *s, const struct monarch_aim *a, int dir, const char *path,
                          int follow, struct monarch_place *place);

/* The name under which the kernel knows an open file (MONARCH_PATH_MAX bytes); 0 for none. It may
 * have no such name any more. */
int monarch_name_of(int fd, char *out);

#endif
