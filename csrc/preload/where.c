#define _GNU_SOURCE
#include "serve.h"

#include <sched.h>
#include <string.h>

#include "calls.h"
#include "mappings.h"
#include "sys.h"

uint64_t monarch_cwd_is;

static int is_below(const char *path, const char *root, size_t root_len) {
    return strncmp(path, root, root_len) == 0 && (path[root_len] == '/' || !path[root_len]);
}

static int is_near(const struct monarch_control *k, const char *cwd) {
    size_t n = strlen(cwd) - (cwd[1] == 0);
    for (uint32_t i = 0; i < k->sources; i++) {
        const struct monarch_source *s = &k->source[i];
        if (is_below(cwd, s->path, s->path_len) || is_below(s->path, cwd, n))
            return 1;
        if (s->alias_len && (is_below(cwd, s->alias, s->alias_len) || is_below(s->alias, cwd, n)))
            return 1;
    }
    return 0;
}

static void find_cwd(const struct session *s) {
    uint64_t seen = __atomic_load_n(&monarch_cwd_is, __ATOMIC_ACQUIRE);
    if ((seen & 3) == MONARCH_CWD_UNKNOWN) {
        char cwd[MONARCH_PATH_MAX];
        int near = sys_getcwd(cwd, sizeof cwd) > 0 && cwd[0] == '/' && is_near(s->control, cwd);
        uint64_t now = (seen & ~3ULL) | (near ? MONARCH_CWD_NEAR : MONARCH_CWD_FAR);
        __atomic_compare_exchange_n(&monarch_cwd_is, &seen, now, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE);
    }
}

static void cwd_may_differ(void) {
    uint64_t seen = __atomic_load_n(&monarch_cwd_is, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(&monarch_cwd_is, &seen, (seen & ~3ULL) + 4, 0,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        ;
}

int monarch_name_of(int fd, char *out) {
    char link[32] = "/proc/self/fd/", digits[12];
    int n = 0, at = 14;
    if (fd < 0)
        return 0;
    do
        digits[n++] = (char)('0' + fd % 10);
    while (fd /= 10);
    while (n)
        link[at++] = digits[--n];
    link[at] = 0;
    long len = sys_readlink(link, out, MONARCH_PATH_MAX - 1);
    if (len <= 0 || out[0] != '/')
        return 0;
    out[len] = 0;
    return 1;
}

/* The canonical path of an open directory of a source; 0 for any other. */
static int directory_path(struct session *s, int dir, char *out) {
    struct stat st, there; /* a removed directory's link says "/path (deleted)" */
    if (dir < 0 || sys_fstat(dir, &st) != 0 || !S_ISDIR(st.st_mode) ||
        monarch_source_on(s, st.st_dev, 0) < 0 || !monarch_name_of(dir, out))
        return 0;
    return sys_fstatat(AT_FDCWD, out, &there, 0) == 0 && there.st_ino == st.st_ino &&
           there.st_dev == st.st_dev;
}

void monarch_locate_place(struct session *s, const struct monarch_catalog *c, int dir,
                          const char *path, int follow, struct monarch_place *place) {
    place->path[0] = 0;
    place->entry = MONARCH_OUTSIDE;
    if (*path != '/') {
        if (dir == AT_FDCWD
                ? sys_getcwd(place->path, sizeof place->path) <= 0 || place->path[0] != '/'
                : !directory_path(s, dir, place->path))
            return;
    }
    monarch_resolve(s->control, c, s->clients, place->path, path, follow, place);
    if (place->entry != MONARCH_OUTSIDE && !monarch_root_is_ours(s, (unsigned)place->source, 0))
        place->entry = MONARCH_OUTSIDE;
}

__attribute__((noinline)) static int64_t locate_odd(struct session *s,
                                                    const struct monarch_catalog *c, int dir,
                                                    const char *path, int follow, int tell) {
    struct monarch_place place;
    monarch_locate_place(s, c, dir, path, follow, &place);
    if (place.entry == MONARCH_UNKNOWN && tell)
        monarch_mail_path(s, (unsigned)place.source, place.path, place.path_len);
    return place.entry;
}

int monarch_aim(struct session *s, int dir, const char *path, struct monarch_aim *a) {
    a->source = -1;
    a->likely = -1;
    size_t n = strlen(path);
    if (path[0] == '/') {
        a->source = monarch_prefix(s->control, path, n, &a->rel);
        if (a->source < 0 && (!monarch_is_odd(path, n) || monarch_is_outside(s->control, path)))
            return 0;
    } else if (!n) {
        return 0;
    } else if (dir == AT_FDCWD) {
        find_cwd(s);
        if (monarch_is_far(dir, path))
            return 0;
    }
    if (!(a->catalog = monarch_catalog_of(s)))
        return 0;
    if (a->source < 0)
        return 1;
    a->len = n - (size_t)(a->rel - path);
    a->hash = monarch_prepare_find(a->catalog, (unsigned)a->source, a->rel, a->len);
    /* What is before `rel` was compared with the source's name. 16 bytes are looked at at once. */
    size_t from = n < 16 ? 0 : n - (a->len < 16 ? 16 : a->len + 1);
    if (monarch_is_odd(path + from, n - from)) {
        a->source = -1;
        return 1;
    }
    const struct monarch_source *root = &s->control->source[a->source];
    int by_alias = root->alias_len && !is_below(path, root->path, root->path_len);
    a->is_alias = by_alias && !a->len;
    return monarch_root_is_ours(s, (unsigned)a->source, by_alias);
}

int64_t monarch_locate_aimed(struct session *s, const struct monarch_aim *a, int dir,
                             const char *path, int follow, int tell) {
    if (a->source >= 0) {
        if (a->is_alias && !follow)
            return MONARCH_OUTSIDE;
        int64_t id = monarch_find_prepared(a->catalog, (unsigned)a->source, a->rel, a->len, a->hash,
                                           a->likely);
        if (id >= 0 && monarch_entries(a->catalog)[id].kind != MONARCH_LINK)
            return id;
    }
    return locate_odd(s, a->catalog, dir, path, follow, tell);
}

int64_t monarch_locate(struct session *s, const struct monarch_catalog **c, int dir,
                       const char *path, int follow, int tell) {
    struct monarch_aim a;
    if (!monarch_aim(s, dir, path, &a))
        return MONARCH_OUTSIDE;
    *c = a.catalog;
    return monarch_locate_aimed(s, &a, dir, path, follow, tell);
}

/* Looked at first: nearly no other file has it, and the catalog needs not be asked. */
int monarch_has_mode_of_copy(unsigned mode) {
    return (mode & (S_IFMT | 07777)) == (S_IFREG | 0400);
}

/* The file system gives the number of a copy that is gone to anybody's new file. A copy has mode
 * 0400 and its file's size; one that was dropped, and is open still, has no name any more, or its
 * name will go in a moment. */
static int is_copy_of(const struct session *s, const struct monarch_entry *e,
                      const struct stat *st) {
    uint64_t word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
    char path[MONARCH_COPY_PATH];
    struct stat now;
    if ((uint64_t)st->st_size != e->size)
        return 0;
    if (MONARCH_WORD_STATE(word) == MONARCH_PRESENT || !st->st_nlink)
        return 1;
    monarch_copy_path(&s->control->tier[MONARCH_WORD_TIER(word)], MONARCH_WORD_COPY(word), path);
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
    for (int newest = 1; *s; *s = (*s)->before, newest = 0) {
        int t = monarch_tier_on(*s, st->st_dev, 0);
        if (t < 0)
            continue;
        /* What an old session has not mapped, a new daemon may have made under the same name. */
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

void monarch_ring(struct session *s) {
    __atomic_fetch_add(&s->clients->doorbell, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&s->clients->sleeping, __ATOMIC_SEQ_CST))
        sys_futex_wake(&s->clients->doorbell);
}

void monarch_mail_path(struct session *s, unsigned source, const char *path, size_t len) {
    struct monarch_clients *m = s->clients;
    if (len >= MONARCH_MAIL_PATH)
        return;
    uint64_t n = __atomic_fetch_add(&m->mails, 1, __ATOMIC_RELAXED);
    struct monarch_mail *slot = &m->mail[n % MONARCH_MAIL_SLOTS];
    uint64_t seen = __atomic_load_n(&slot->ticket, __ATOMIC_ACQUIRE);
    if (seen & 3)
        return;               /* not emptied yet */
    uint64_t mine = seen + 5; /* the next number, being written */
    if (!__atomic_compare_exchange_n(&slot->ticket, &seen, mine, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return;
    slot->source = source;
    slot->path_len = (uint32_t)len;
    memcpy(slot->path, path, len);
    /* Fails if the daemon took us for dead and freed the slot. */
    if (__atomic_compare_exchange_n(&slot->ticket, &mine, mine + 1, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED))
        monarch_ring(s);
}

/* --- changes of place ----------------------------------------------------------------------- */

PUBLIC int chdir(const char *path) {
    cwd_may_differ();
    int r = REAL(chdir)(path);
    cwd_may_differ();
    return r;
}

PUBLIC int fchdir(int fd) {
    cwd_may_differ();
    int r = REAL(fchdir)(fd);
    cwd_may_differ();
    return r;
}

PUBLIC int chroot(const char *path) {
    int r = REAL(chroot)(path);
    monarch_roots_may_differ();
    return r;
}

/* What is mounted from here on is for this process alone, and we do not hear of it. */
PUBLIC int unshare(int flags) {
    monarch_mappings_end();
    int r = REAL(unshare)(flags);
    if (r == 0 && (flags & CLONE_NEWNS))
        monarch_roots_are_foreign();
    return r;
}

PUBLIC int setns(int fd, int type) {
    monarch_mappings_end();
    int r = REAL(setns)(fd, type);
    if (r == 0)
        monarch_roots_are_foreign();
    return r;
}
