/* Looks up paths of every form: absolute, relative to a directory, or leading through links. */
#pragma once

#include "preload/lookup/cwd.h"
#include "preload/lookup/links.h"

/* Returns whether the path surely leads into no source: it is far from every source
 * (monarch_is_far), and this process has used no link into a source. This check is cheap, so
 * callers make it first. */
static inline int monarch_leads_nowhere(int dir, const char *path) {
    return !__atomic_load_n(&monarch_links_met, __ATOMIC_RELAXED) && monarch_is_far(dir, path);
}

/* Returns the number of the catalog's entry for a path. Returns MONARCH_UNKNOWN if the path leads
 * into a source, but is not in the catalog. Returns MONARCH_OUTSIDE if the path leads into no
 * source, or if only the kernel can resolve the path. Sets *c to the catalog in which the path was
 * looked up. The catalog is mapped only when a path first needs it, because most processes never
 * need it. */
int64_t monarch_locate(struct session *s, const struct monarch_catalog **c, int dir,
                       const char *path, int follow);
/* Does the same as monarch_locate, but needs less stack, because it uses the caller's buffer.
 * buffer: MONARCH_PATH_MAX bytes, separate from the memory of `path`. */
int64_t monarch_locate_in(struct session *s, const struct monarch_catalog **c, int dir,
                          const char *path, int follow, char *buffer);

/* The state between the two steps of monarch_locate: monarch_aim sets these fields, and
 * monarch_locate_aimed uses them. Plain paths are looked up by `hash`. A path is plain if it
 * begins with the path or the alias of a source, and the rest of it (`rel`) contains no `//`, `.`
 * or `..` (monarch_is_odd). */
struct monarch_aim {
    const struct monarch_catalog *catalog;
    /* If not NULL: the source's directory to which the first `skip` bytes of the path lead, through
     * a link outside all sources. */
    const struct monarch_entry *base;
    size_t skip;
    /* how the path leads into a source through a link; unused if the path begins with the path or
     * the alias of a source */
    enum monarch_lead lead;
    /* if `lead` is MONARCH_LEAD_FILES: the entry's version (monarch_enter_file) */
    uint32_t version;
    int is_open; /* 1: the look-up is for an open; only opens use MONARCH_LEAD_FILES */
    /* 1: the library does not know yet whether the path leads into a source through a link. Also 1
     * if the hint is MONARCH_LEAD_FILES, and the file is not in the catalog, but the scan may
     * still find it. */
    int is_new;
    const char *rel; /* the path relative to the source */
    size_t len;
    uint64_t hash;
    /* 1: the path itself may be a link to a directory of the source. If links are not followed,
     * the path means the link itself, which is outside all sources. */
    int is_alias;
    int64_t likely; /* the result of monarch_guess, or -1 */
    /* Number of the source to which the path leads. -1: unknown until monarch_locate_place has
     * resolved the path. */
    int source;
};
/* The first step of a look-up. Returns 0 if nothing shows that the path may lead into a source, or
 * if the session cannot be used for the look-up. */
int monarch_aim(struct session *s, int dir, const char *path, int is_open, struct monarch_aim *a);
int64_t monarch_locate_aimed(struct session *s, struct monarch_aim *a, int dir, const char *path,
                             int follow);

/* Resolves the path. Stores in *place the entry and the resolved path. The resolved path is
 * relative to the source, and contains no links and no components `.` or `..`. */
void monarch_locate_place(struct session *s, const struct monarch_aim *a, int dir, const char *path,
                          int follow, struct monarch_place *place);
