#include "shared/path.h"

#include <string.h>

#include "shared/bytes.h"
#include "shared/sys.h"

/* Maximum number of links that a walk follows. The kernel's limit is twice as large, but also
 * counts links on the way to the source's root. A walk does not see those. */
#define MAX_LINKS 20

/* Returns whether the path equals `root` (`len` bytes) or lies below it. Checks the path's byte at
 * `len` first, which alone rules out nearly all other paths. */
static inline int has_prefix(const char *path, size_t n, const char *root, uint32_t len) {
    return len && n >= len && (path[len] == '/' || n == len) && same_bytes(path, root, len);
}

int monarch_prefix(const struct monarch_control *k, const char *path, size_t n, const char **rel) {
    for (uint32_t i = 0; i < k->sources; i++) {
        const struct monarch_source *s = &k->source[i];
        uint32_t len = has_prefix(path, n, s->path, s->path_len)     ? s->path_len
                       : has_prefix(path, n, s->alias, s->alias_len) ? s->alias_len
                                                                     : 0;
        if (len) {
            *rel = path + len + (path[len] == '/');
            return (int)i;
        }
    }
    return -1;
}

/* Returns whether the component at `after` is empty, `.` or `..`. `after` points to the byte after
 * a slash, or to the start of a relative path. */
static int odd_component(const char *after) {
    if (after[0] != '.')
        return after[0] == '/' || !after[0];
    after += after[1] == '.' ? 2 : 1;
    return *after == '/' || !*after;
}

/* Returns whether the path (at least 16 bytes) contains a certain pair of bytes. of_dots = 1: two
 * dots. of_dots = 0: a slash, followed by a dot, another slash or the NUL. Compares 16 positions at
 * a time, because this check runs for every path, and nearly always finds nothing. */
static inline int has_pair(const char *path, size_t n, int of_dots) {
    two_words found = {0, 0};
    for (size_t i = 0; i < n; i += 16) {
        const char *at = path + sixteen_at(i, n);
        sixteen_bytes here = *(const sixteen_bytes *)at, next = *(const sixteen_bytes *)(at + 1);
        if (of_dots)
            found |= (two_words)((here == '.') & (next == '.'));
        else
            found |= (two_words)((here == '/') & ((next == '/') | (next == '.') | (next == 0)));
    }
    return (found[0] | found[1]) != 0;
}

int monarch_may_go_up(const char *path) {
    size_t n = strlen(path);
    if (n >= 16)
        return has_pair(path, n, 1);
    for (; *path; path++)
        if (path[0] == '.' && path[1] == '.')
            return 1;
    return 0;
}

int monarch_is_odd(const char *path, size_t n) {
    if (n >= 16 && path[0] != '.' && !has_pair(path, n, 0))
        return 0;
    if (path[0] == '.' && odd_component(path))
        return 1;
    for (const char *p = path; *p; p++)
        if (__builtin_expect(*p == '/', 0) && odd_component(p + 1))
            return p[1] || p != path; /* "/" itself is plain */
    return 0;
}

/* A walk over one path. `text` is the absolute path walked so far, without a trailing slash ("" is
 * the root). The kernel has resolved the first `canonical` bytes of `text`, so they contain no
 * link. */
struct walk {
    const struct monarch_control *control;
    const struct monarch_catalog *catalog;
    const struct monarch_clients *clients;
    size_t len, canonical;
    /* needs_directory: the path ends with a slash, `.` or `..`, so it must lead to a directory.
     * by_letters: a `..` removes the component before it from the text, even if that component is a
     * link. */
    int needs_directory, by_letters;
    char *text;
};

static int is_current(const struct walk *w, int64_t id) {
    const struct monarch_entry *e = &monarch_entries(w->catalog)[id];
    /* The load is atomic, because the daemon may replace the inode number at any time. */
    uint64_t ino = __atomic_load_n(&e->ino, __ATOMIC_RELAXED);
    return !monarch_is_changed(w->clients, w->control->source[e->source].dev, ino);
}

/* Returns whether w->text, the path walked so far, ends in a directory and not in a link. A `..`
 * can be resolved in the text only after a directory: a link may lead to another directory. */
static int is_real_directory(struct walk *w) {
    const char *rel;
    struct stat st;
    int source = monarch_prefix(w->control, w->text, w->len, &rel);
    if (source >= 0 && *rel) {
        int64_t id = monarch_find(w->catalog, (unsigned)source, rel, strlen(rel));
        if (id >= 0 && is_current(w, id))
            return monarch_entries(w->catalog)[id].kind == MONARCH_DIR;
    }
    return sys_fstatat(AT_FDCWD, w->text, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static int go_up(struct walk *w) {
    if (!w->by_letters && w->len > w->canonical && !is_real_directory(w))
        return 0;
    while (w->len && w->text[w->len - 1] != '/')
        w->len--;
    w->len -= w->len > 0;
    w->text[w->len] = 0;
    if (w->canonical > w->len)
        w->canonical = w->len;
    return 1;
}

static int append(struct walk *w, const char *name, size_t n) {
    if (w->len + 1 + n >= MONARCH_PATH_MAX)
        return 0;
    w->text[w->len++] = '/';
    memmove(w->text + w->len, name, n); /* `name` may lie in the same buffer as w->text */
    w->len += n;
    w->text[w->len] = 0;
    return 1;
}

static int walk_components(struct walk *w, const char *path) {
    while (*path) {
        size_t n = strcspn(path, "/");
        w->needs_directory = 1;
        if (n == 2 && path[0] == '.' && path[1] == '.') {
            if (!go_up(w))
                return 0;
        } else if (n && !(n == 1 && *path == '.')) {
            w->needs_directory = path[n] == '/';
            if (!append(w, path, n))
                return 0;
        }
        path += n + (path[n] == '/');
    }
    return 1;
}

int64_t monarch_first_link(const struct monarch_catalog *c, unsigned source, const char *rel,
                           size_t *end) {
    for (size_t i = 1; rel[i]; i++) {
        if (rel[i] != '/')
            continue;
        int64_t id = monarch_find(c, source, rel, i);
        if (id < 0)
            return -1;
        *end = i;
        if (monarch_entries(c)[id].kind == MONARCH_LINK)
            return id;
    }
    return -1;
}

/* Replaces the link by its target. Returns the path still to be walked: the target, and then the
 * components after the link. Returns NULL if that path does not fit, or if the link has changed.
 *
 * Callers may be on small stacks, so the buffer `text` now holds two paths. At its beginning is the
 * path walked so far, up to the directory from which the target starts. At its end is the path
 * still to be walked. A gap of two bytes between them is enough. Before the walk appends a byte to
 * the first path, it has read a byte of the second path. */
static const char *substitute(struct walk *w, const char *rel, int64_t link, size_t end) {
    const struct monarch_entry *e = &monarch_entries(w->catalog)[link];
    const char *target = monarch_pool(w->catalog, e->copy_ino);
    size_t n = strlen(target), rest = strlen(rel + end), slash = (size_t)(w->needs_directory != 0);
    size_t kept = target[0] == '/' ? 0 : (size_t)(rel - w->text) + end;
    while (kept && w->text[--kept] != '/')
        ;
    if (!is_current(w, link) || kept + 2 + n + rest + slash >= MONARCH_PATH_MAX)
        return NULL;
    char *last = w->text + MONARCH_PATH_MAX - 1, *behind = last - slash - rest;
    memmove(behind, rel + end, rest);
    memcpy(behind + rest, "/", slash);
    *last = 0;
    memcpy(behind - n, target, n);
    w->len = kept;
    w->text[kept] = 0;
    /* The kernel has not resolved the new path, so any component of it may be a link. */
    w->canonical = 0;
    return behind - n;
}

int monarch_is_outside(const struct monarch_control *k, const char *path) {
    char text[MONARCH_PATH_MAX] = "";
    const char *rel;
    struct walk w = {.control = k, .by_letters = 1, .text = text};
    return walk_components(&w, path) && monarch_prefix(k, text, w.len, &rel) < 0;
}

/* Looks up the path walked so far. Returns its entry, MONARCH_OUTSIDE or MONARCH_UNKNOWN. If the
 * path leads through a link, returns -3, and *next is the path still to be walked. */
static int64_t look_up(struct walk *w, int follow, struct monarch_place *out, const char **next) {
    const char *rel;
    size_t end;
    out->source = monarch_prefix(w->control, w->text, w->len, &rel);
    if (out->source < 0)
        return MONARCH_OUTSIDE;
    int64_t id = monarch_find(w->catalog, (unsigned)out->source, rel, strlen(rel));
    const struct monarch_source *source = &w->control->source[out->source];
    int may_be_link = !*rel && source->alias_len && strcmp(w->text, source->alias) == 0;
    if ((id < 0 && !*rel) || (may_be_link && !follow && !w->needs_directory))
        return MONARCH_OUTSIDE;
    int last_is_link = id >= 0 && monarch_entries(w->catalog)[id].kind == MONARCH_LINK;
    if (last_is_link && !follow && !w->needs_directory)
        return id;
    if (id >= 0 && !last_is_link)
        return w->needs_directory && monarch_entries(w->catalog)[id].kind != MONARCH_DIR
                   ? MONARCH_OUTSIDE /* a file with a trailing slash: the source returns ENOTDIR */
                   : id;
    int64_t link =
        last_is_link ? id : monarch_first_link(w->catalog, (unsigned)out->source, rel, &end);
    if (last_is_link)
        end = strlen(rel);
    if (link < 0)
        return MONARCH_UNKNOWN;
    *next = substitute(w, rel, link, end);
    return *next ? -3 : MONARCH_OUTSIDE;
}

void monarch_resolve(const struct monarch_control *k, const struct monarch_catalog *c,
                     const struct monarch_clients *m, const char *base, const char *path,
                     int follow, struct monarch_place *out) {
    struct walk w = {.control = k, .catalog = c, .clients = m, .text = out->path};
    out->entry = MONARCH_OUTSIDE;
    out->source = -1;
    out->path_len = 0;
    /* An empty path and a path that is too long are left to the kernel, which refuses them. The
     * kernel measures the length before `..` and links are resolved. */
    if (!*path || strnlen(path, MONARCH_PATH_MAX) == MONARCH_PATH_MAX)
        return;
    if (*path != '/') {
        w.len = w.canonical = strlen(base) - (base[1] == 0); /* "/" is stored as "" */
        if (w.len >= MONARCH_PATH_MAX)
            return;
        memmove(out->path, base, w.len);
    }
    out->path[w.len] = 0;
    for (int links = 0; links <= MAX_LINKS; links++) {
        if (!walk_components(&w, path))
            return;
        out->entry = look_up(&w, follow, out, &path);
        if (out->entry != -3)
            break;
        out->entry = MONARCH_OUTSIDE;
    }
    const char *rel = out->path;
    if (monarch_prefix(k, out->path, strlen(out->path), &rel) >= 0) {
        out->path_len = (uint32_t)strlen(rel);
        memmove(out->path, rel, out->path_len + 1);
    }
}
