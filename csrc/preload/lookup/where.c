#include "preload/lookup/where.h"

#include <string.h>

#include "preload/process/proc.h"
#include "preload/session/copies.h"
#include "preload/session/roots.h"
#include "shared/sys.h"

/* Writes to `out` the canonical path of the open directory `dir`. Returns 0 if `dir` is not a
 * descriptor of a directory on a source's device. */
static int directory_path(struct session *s, int dir, char *out) {
    struct stat st, there;
    if (dir < 0 || sys_fstat(dir, &st) != 0 || !S_ISDIR(st.st_mode) ||
        monarch_source_on(s, st.st_dev, 0) < 0 || !monarch_name_of(dir, out))
        return 0;
    /* For a removed directory, the kernel reports "/path (deleted)", which leads nowhere. */
    return sys_fstatat(AT_FDCWD, out, &there, 0) == 0 && there.st_ino == st.st_ino &&
           there.st_dev == st.st_dev;
}

/* Writes to `out` the path that the directory a->base has at the source, without a trailing
 * slash. */
static int base_path(const struct session *s, const struct monarch_aim *a, char *out) {
    if (!monarch_source_path(s, a->catalog, a->base, out))
        return 0;
    if (!a->base->path_len)
        out[strlen(out) - 1] = 0;
    return 1;
}

void monarch_locate_place(struct session *s, const struct monarch_aim *a, int dir, const char *path,
                          int follow, struct monarch_place *place) {
    place->path[0] = 0;
    place->entry = MONARCH_OUTSIDE;
    if (a->base) {
        if (!base_path(s, a, place->path))
            return;
        path = path[a->skip] ? path + a->skip : ".";
    } else if (*path != '/') {
        if (dir == AT_FDCWD
                ? sys_getcwd(place->path, MONARCH_PATH_MAX) <= 0 || place->path[0] != '/'
                : !directory_path(s, dir, place->path))
            return;
    }
    monarch_resolve(s->control, a->catalog, s->clients, place->path, path, follow, place);
    if (place->entry != MONARCH_OUTSIDE && !monarch_root_is_ours(s, (unsigned)place->source, 0))
        place->entry = MONARCH_OUTSIDE;
}

/* Looks the path up with monarch_locate_place, and returns the entry's number. Must not be
 * inlined: its buffer takes much of the stack, and few calls need it. */
__attribute__((noinline)) static int64_t locate_odd(struct session *s, const struct monarch_aim *a,
                                                    int dir, const char *path, int follow) {
    char text[MONARCH_PATH_MAX];
    struct monarch_place place = {.path = text};
    monarch_locate_place(s, a, dir, path, follow, &place);
    return place.entry;
}

/* Does the work of monarch_aim for a path whose hint leads into a source. Must not be inlined.
 * Otherwise, monarch_aim would save more registers at every call. */
__attribute__((noinline)) static int aim_by_hint(struct session *s, const char *path, size_t n,
                                                 struct monarch_hint hint, struct monarch_aim *a) {
    /* With MONARCH_LEAD_FILES, the library must check the file at the source by a stat. An open
     * may use the copy after this check. But for a stat, the check would save nothing. */
    if ((hint.lead == MONARCH_LEAD_FILES && !a->is_open) || !(a->catalog = monarch_catalog_of(s)))
        return 0;
    a->lead = hint.lead;
    if (hint.lead == MONARCH_LEAD_FILES)
        return 1;
    a->base = monarch_enter_directory(s, a->catalog, path, hint.prefix);
    a->is_new = !a->base;
    if (!a->base)
        return 0;
    a->skip = hint.prefix + strspn(path + hint.prefix, "/");
    a->is_alias = !path[hint.prefix];
    a->rel = path + a->skip;
    a->len = n - a->skip;
    if (a->base->path_len || monarch_is_odd(a->rel, a->len))
        return 1;
    a->source = a->base->source;
    a->hash = monarch_prepare_find(a->catalog, (unsigned)a->source, a->rel, a->len);
    return monarch_root_is_ours(s, (unsigned)a->source, 0);
}

/* Does the work of monarch_aim for a path that does not begin with the name of a source, but may
 * lead into a source through a link. */
static inline int aim_through_link(struct session *s, const char *path, size_t n,
                                   struct monarch_aim *a) {
    if ((!a->is_open && !__atomic_load_n(&monarch_links_met, __ATOMIC_RELAXED)) ||
        n >= MONARCH_PATH_MAX)
        return 0;
    struct monarch_hint hint = monarch_hint_for(path, n);
    a->is_new = hint.lead == MONARCH_LEAD_NEW;
    if (__builtin_expect(hint.lead > MONARCH_LEAD_ELSEWHERE, 0))
        return aim_by_hint(s, path, n, hint, a);
    a->lead = hint.lead;
    return 0;
}

int monarch_aim(struct session *s, int dir, const char *path, int is_open, struct monarch_aim *a) {
    *a = (struct monarch_aim){.source = -1, .likely = -1, .is_open = is_open};
    size_t n = strlen(path);
    if (path[0] == '/') {
        a->source = monarch_prefix(s->control, path, n, &a->rel);
        if (a->source < 0) {
            /* Most opens of files outside all sources return here, because the table's hint says
             * that the path's directory leads to no source. */
            int leads = aim_through_link(s, path, n, a);
            if (leads || a->lead != MONARCH_LEAD_NEW || !monarch_is_odd(path, n) ||
                monarch_is_outside(s->control, path))
                return leads;
        }
    } else if (!n) {
        return 0;
    } else if (dir == AT_FDCWD) {
        monarch_find_cwd(s);
        if (monarch_is_far(dir, path))
            return aim_through_link(s, path, n, a);
    }
    if (!(a->catalog = monarch_catalog_of(s)))
        return 0;
    if (a->source < 0)
        return 1;
    a->len = n - (size_t)(a->rel - path);
    a->hash = monarch_prepare_find(a->catalog, (unsigned)a->source, a->rel, a->len);
    /* Checks whether the part `rel` of the path contains `//`, `.` or `..`. The part before `rel`
     * is the source's path or alias, and needs no check. But monarch_is_odd loads 16 bytes at
     * once. So if `rel` has fewer than 16 bytes, the check begins before `rel`. */
    size_t from = n < 16 ? 0 : n - (a->len < 16 ? 16 : a->len + 1);
    if (monarch_is_odd(path + from, n - from)) {
        a->source = -1;
        return 1;
    }
    const struct monarch_source *root = &s->control->source[a->source];
    int by_alias = root->alias_len && !monarch_is_below(path, root->path, root->path_len);
    a->is_alias = by_alias && !a->len;
    return monarch_root_is_ours(s, (unsigned)a->source, by_alias);
}

int64_t monarch_locate_aimed(struct session *s, struct monarch_aim *a, int dir, const char *path,
                             int follow) {
    if (a->lead == MONARCH_LEAD_FILES) {
        int64_t id = monarch_enter_file(s, a->catalog, dir, path, follow, &a->version);
        a->is_new = id == MONARCH_OUTSIDE && !s->control->scanned;
        return id;
    }
    if (a->is_alias && !follow)
        return MONARCH_OUTSIDE;
    if (a->source >= 0) {
        int64_t id = monarch_find_prepared(a->catalog, (unsigned)a->source, a->rel, a->len, a->hash,
                                           a->likely);
        if (id >= 0 && monarch_entries(a->catalog)[id].kind != MONARCH_LINK)
            return id;
        size_t end;
        /* If no component of the path is a link, the path leads where its text says: to a file that
         * the catalog does not contain. */
        if (id < 0 && a->len && !a->base &&
            monarch_first_link(a->catalog, (unsigned)a->source, a->rel, &end) < 0)
            return MONARCH_UNKNOWN;
    }
    int64_t id = locate_odd(s, a, dir, path, follow);
    if (id == MONARCH_OUTSIDE && !a->base && (dir == AT_FDCWD || *path == '/') &&
        aim_through_link(s, path, strlen(path), a))
        return monarch_locate_aimed(s, a, dir, path, follow);
    return id;
}

int64_t monarch_locate(struct session *s, const struct monarch_catalog **c, int dir,
                       const char *path, int follow) {
    struct monarch_aim a;
    if (!monarch_aim(s, dir, path, 0, &a))
        return MONARCH_OUTSIDE;
    int64_t id = monarch_locate_aimed(s, &a, dir, path, follow);
    /* a.catalog contains the entry `id`. Do not read this field before the call of
     * monarch_locate_aimed, because that call may replace the catalog by a newer catalog. */
    *c = a.catalog;
    return id;
}

int64_t monarch_locate_in(struct session *s, const struct monarch_catalog **c, int dir,
                          const char *path, int follow, char *buffer) {
    struct monarch_aim a;
    struct monarch_place place = {.path = buffer};
    if (!monarch_aim(s, dir, path, 0, &a) || (a.is_alias && !follow))
        return MONARCH_OUTSIDE;
    monarch_locate_place(s, &a, dir, path, follow, &place);
    *c = a.catalog;
    return place.entry;
}
