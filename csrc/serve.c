#define _GNU_SOURCE
#include "serve.h"

#include <string.h>

#include "sys.h"

void monarch_copy_path(const struct monarch_tier *tier, uint64_t number, char *out) {
    memcpy(out, tier->path, tier->path_len);
    for (int i = MONARCH_COPY_NAME - 1; i >= 0; i--, number >>= 4)
        out[tier->path_len + (unsigned)i] = "0123456789abcdef"[number & 15];
    out[tier->path_len + MONARCH_COPY_NAME] = 0;
}

static void want(struct session *s, uint64_t id) {
    uint64_t *word = &s->clients->wanted[id / 64], bit = 1ULL << (id % 64);
    if (id >= MONARCH_MAX_FILES || __atomic_load_n(word, __ATOMIC_RELAXED) & bit)
        return;
    if (!(__atomic_fetch_or(word, bit, __ATOMIC_SEQ_CST) & bit))
        monarch_ring(s);
}

void monarch_count(struct session *s, const struct monarch_entry *e, int from_copy) {
    struct monarch_stats *n = monarch_my_stats(s);
    __atomic_fetch_add(&n->opens, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(from_copy ? &n->hits : &n->misses, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(from_copy ? &n->bytes_from_tier : &n->bytes_from_source, e->size,
                       __ATOMIC_RELAXED);
}

const struct monarch_entry *monarch_copy_for(struct session *s, int dir, const char *path,
                                             int flags, char *copy) {
    if (!path || flags & (O_PATH | O_DIRECTORY)) /* these open no file */
        return NULL;
    const struct monarch_catalog *c = monarch_catalog_of(s);
    if (!c)
        return NULL;
    int64_t id = monarch_locate(s, c, dir, path, !(flags & O_NOFOLLOW), 1);
    if (id < 0 || monarch_entries(c)[id].kind != MONARCH_FILE)
        return NULL;
    monarch_tick(s);
    const struct monarch_entry *e = &monarch_entries(c)[id];
    /* Who does not own the file may not ask for it; every copy is our own. */
    if ((flags & O_NOATIME) && e->uid != (uid_t)sys6(SYS_geteuid, 0, 0, 0, 0, 0, 0))
        return NULL;
    uint64_t word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
    if (MONARCH_WORD_STATE(word) == MONARCH_PRESENT && !s->off &&
        !monarch_is_changed(s->clients, s->control->source[e->source].dev, e->ino)) {
        /* The number of a copy is never given again: if it is dropped before the open, the open
         * fails and the source answers. */
        monarch_copy_path(&s->control->tier[MONARCH_WORD_TIER(word)], MONARCH_WORD_COPY(word),
                          copy);
        return e;
    }
    if (MONARCH_WORD_STATE(word) == MONARCH_ABSENT)
        want(s, (uint64_t)id);
    monarch_count(s, e, 0);
    return NULL;
}

/* --- changes -------------------------------------------------------------------------------- */

static void mark(struct session *s, const struct stat *st) {
    if (monarch_source_on(s, st->st_dev, 0) >= 0)
        monarch_mark_changed(s->clients, st->st_dev, st->st_ino);
}

void monarch_changed_path(int dir, const char *path, int follow) {
    struct session *s = session_for_change();
    struct stat st;
    if (s && sys_fstatat(dir, path, &st, follow ? 0 : AT_SYMLINK_NOFOLLOW) == 0)
        mark(s, &st);
}

void monarch_changed_fd(int fd) {
    struct session *s = session_for_change();
    struct stat st;
    if (s && sys_fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        mark(s, &st);
}

static void mark_below(struct session *s, const struct monarch_catalog *c,
                       const struct monarch_entry *directory, uint64_t count) {
    const struct monarch_entry *entries = monarch_entries(c);
    const char *prefix = monarch_pool(c, directory->path);
    uint64_t dev = s->control->source[directory->source].dev;
    for (uint64_t i = 0; i < count; i++) {
        const char *path = monarch_pool(c, entries[i].path);
        if (entries[i].source == directory->source && entries[i].path_len > directory->path_len &&
            path[directory->path_len] == '/' && memcmp(path, prefix, directory->path_len) == 0)
            monarch_mark_changed(s->clients, dev, entries[i].ino);
    }
}

/* A directory's new name gives every file below it another path: the whole catalog is looked
 * through, which a training job does not do in a loop. What the daemon's scan finds meanwhile it
 * asks for again, because the count has moved. */
void monarch_changed_tree(int dir, const char *path) {
    struct session *s = session_for_change();
    struct stat st;
    if (!s || sys_fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    mark(s, &st);
    if (!S_ISDIR(st.st_mode) || monarch_source_on(s, st.st_dev, 0) < 0)
        return;
    __atomic_fetch_add(&s->clients->renames, 1, __ATOMIC_SEQ_CST);
    const struct monarch_catalog *c = monarch_catalog_of(s);
    uint64_t count = c ? __atomic_load_n(&c->count, __ATOMIC_ACQUIRE) : 0;
    for (uint64_t i = 0; i < count; i++) {
        const struct monarch_entry *e = &monarch_entries(c)[i];
        if (e->kind == MONARCH_DIR && e->ino == st.st_ino &&
            s->control->source[e->source].dev == st.st_dev)
            mark_below(s, c, e, count);
    }
}

int monarch_source_path_of(int fd, char *path) {
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    const struct monarch_catalog *c;
    struct stat st;
    if (!s || sys_fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return 0;
    const struct monarch_entry *e = monarch_behind_copy(&s, &c, &st);
    if (!e)
        return 0;
    const struct monarch_source *source = &s->control->source[e->source];
    if (source->path_len + 1u + e->path_len >= MONARCH_PATH_MAX)
        return 0;
    memcpy(path, source->path, source->path_len);
    path[source->path_len] = '/';
    memcpy(path + source->path_len + 1, monarch_pool(c, e->path), e->path_len + 1u);
    return 1;
}
