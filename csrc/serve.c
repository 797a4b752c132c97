#define _GNU_SOURCE
#include "serve.h"

#include <string.h>

#include "demand.h"
#include "sys.h"
#include "track.h"

void monarch_copy_path(const struct monarch_tier *tier, uint64_t number, char *out) {
    memcpy(out, tier->path, tier->path_len);
    for (int i = MONARCH_COPY_NAME - 1; i >= 0; i--, number >>= 4)
        out[tier->path_len + (unsigned)i] = "0123456789abcdef"[number & 15];
    out[tier->path_len + MONARCH_COPY_NAME] = 0;
}

/* What was asked for of files that are not to be filled at once: entry << 32 | KiB. A file that
 * shares its place with another begins again. */
static uint64_t asked[1024];

static int is_enough(const struct session *s, const struct monarch_entry *e, uint64_t id,
                     uint64_t n) {
    uint64_t share = s->control->fill_after, *at = &asked[id % 1024];
    if (!share)
        return 1;
    uint64_t old = __atomic_load_n(at, __ATOMIC_RELAXED), kib;
    do {
        kib = (old >> 32 == id ? old & 0xFFFFFFFF : 0) + (n + 1023) / 1024;
        kib = kib < 0xFFFFFFFF ? kib : 0xFFFFFFFF;
    } while (!__atomic_compare_exchange_n(at, &old, id << 32 | kib, 0, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    return kib * 1024 / 100 * MONARCH_SHARES >= e->size / 100 * share;
}

int monarch_want(struct session *s, const struct monarch_entry *e, uint64_t id, uint64_t n) {
    uint64_t *word = &s->clients->wanted[id / 64], bit = 1ULL << (id % 64);
    if (!s->control->fill_on_open || id >= MONARCH_MAX_FILES || !is_enough(s, e, id, n))
        return 0;
    if (!(__atomic_load_n(word, __ATOMIC_RELAXED) & bit) &&
        !(__atomic_fetch_or(word, bit, __ATOMIC_SEQ_CST) & bit))
        monarch_ring(s);
    return 1;
}

int monarch_wait_for_copy(struct session *s, struct monarch_opening *o) {
    const struct monarch_entry *e = o->entry;
    if (!e || o->served ||
        monarch_is_changed(s->clients, s->control->source[e->source].dev, e->ino))
        return 0;
    struct monarch_wanted w = {.session = s, .entry = e, .id = (uint64_t)o->id};
    unsigned state = MONARCH_WORD_STATE(monarch_word_of(&w));
    if (state == MONARCH_BYPASS ||
        (state == MONARCH_ABSENT && !monarch_want(s, e, w.id, e->size)) ||
        !monarch_wait_for_all(&w))
        return 0;
    uint64_t word = monarch_word_of(&w);
    if (MONARCH_WORD_STATE(word) != MONARCH_PRESENT)
        return 0;
    monarch_copy_path(&s->control->tier[MONARCH_WORD_TIER(word)], MONARCH_WORD_COPY(word), o->copy);
    return 1;
}

static void count(struct session *s, int from_copy, uint64_t size) {
    struct monarch_stats *n = monarch_my_stats(s);
    __atomic_fetch_add(&n->opens, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(from_copy ? &n->hits : &n->misses, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(from_copy ? &n->bytes_from_tier : &n->bytes_from_source, size,
                       __ATOMIC_RELAXED);
}

void monarch_opened_copy(struct session *s, const struct monarch_opening *o) {
    count(s, 1, o->entry->size);
}

void monarch_opened_source(struct session *s, const struct monarch_opening *o, int flags, int fd) {
    struct stat st;
    if (o->entry) {
        count(s, 0, o->entry->size);
        uint64_t word = __atomic_load_n(&o->entry->word, __ATOMIC_ACQUIRE);
        if (MONARCH_WORD_STATE(word) != MONARCH_BYPASS && o->entry->size &&
            !(flags & ~(O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK | O_LARGEFILE)))
            monarch_track(s, fd, (uint64_t)o->id);
    }
    if (!o->entry && sys_fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        count(s, 0, (uint64_t)st.st_size);
}

void monarch_look_up(struct session *s, int dir, const char *path, int flags,
                     struct monarch_opening *o) {
    o->entry = NULL;
    o->id = MONARCH_OUTSIDE;
    o->served = 0;
    if (!path || flags & (O_PATH | O_DIRECTORY)) /* these open no file */
        return;
    const struct monarch_catalog *c = monarch_catalog_of(s);
    if (!c)
        return;
    int64_t id = monarch_locate(s, c, dir, path, !(flags & O_NOFOLLOW), 1);
    if (id < 0) {
        o->id = id;
        return;
    }
    const struct monarch_entry *e = &monarch_entries(c)[id];
    if (e->kind != MONARCH_FILE)
        return;
    monarch_tick(s);
    o->id = id;
    o->entry = e;
    /* Who does not own the file may not ask for it; every copy is our own. */
    if ((flags & O_NOATIME) && e->uid != (uid_t)sys6(SYS_geteuid, 0, 0, 0, 0, 0, 0))
        return;
    uint64_t word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
    if (MONARCH_WORD_STATE(word) == MONARCH_PRESENT && !monarch_is_off(s) &&
        !monarch_is_changed(s->clients, s->control->source[e->source].dev, e->ino)) {
        /* The number of a copy is never given again: if it is dropped before the open, the open
         * fails and the source answers. */
        monarch_copy_path(&s->control->tier[MONARCH_WORD_TIER(word)], MONARCH_WORD_COPY(word),
                          o->copy);
        o->served = 1;
    } else if (MONARCH_WORD_STATE(word) == MONARCH_ABSENT ||
               MONARCH_WORD_STATE(word) == MONARCH_WANTED) {
        monarch_want(s, e, (uint64_t)id, 0); /* one that is filled ahead is in use from now on */
    }
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

/* What happens to a directory happens to every file below it: a new name gives them all other
 * paths, and other rights may close them. The whole catalog is looked through, which a training job
 * does not do in a loop. What the daemon's scan finds meanwhile it asks for again, because the
 * count has moved. */
static void mark_below_directory(struct session *s, const struct stat *st) {
    __atomic_fetch_add(&s->clients->renames, 1, __ATOMIC_SEQ_CST);
    const struct monarch_catalog *c = monarch_catalog_of(s);
    uint64_t count = c ? __atomic_load_n(&c->count, __ATOMIC_ACQUIRE) : 0;
    for (uint64_t i = 0; i < count; i++) {
        const struct monarch_entry *e = &monarch_entries(c)[i];
        if (e->kind == MONARCH_DIR && e->ino == st->st_ino &&
            s->control->source[e->source].dev == st->st_dev)
            mark_below(s, c, e, count);
    }
}

static void mark_all(struct session *s, const struct stat *st) {
    mark(s, st);
    if (S_ISDIR(st->st_mode) && monarch_source_on(s, st->st_dev, 0) >= 0)
        mark_below_directory(s, st);
}

void monarch_changed_tree(int dir, const char *path) {
    struct session *s = session_for_change();
    struct stat st;
    if (!s || sys_fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    mark_all(s, &st);
}

int monarch_source_path(const struct session *s, const struct monarch_catalog *c,
                        const struct monarch_entry *e, char *real) {
    const struct monarch_source *source = &s->control->source[e->source];
    if (source->path_len + 1u + e->path_len >= MONARCH_PATH_MAX)
        return 0;
    memcpy(real, source->path, source->path_len);
    real[source->path_len] = '/';
    memcpy(real + source->path_len + 1, monarch_pool(c, e->path), e->path_len + 1u);
    return 1;
}

/* Descriptors of copies outlive the daemon: this asks for none. */
static int describes_copy(const struct stat *st, char *real) {
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    const struct monarch_catalog *c;
    const struct monarch_entry *e =
        s && S_ISREG(st->st_mode) ? monarch_behind_copy(&s, &c, st) : NULL;
    struct stat now;
    if (!e || !real)
        return e != NULL;
    if (!monarch_source_path(s, c, e, real) ||
        sys_fstatat(AT_FDCWD, real, &now, AT_SYMLINK_NOFOLLOW) != 0 || now.st_ino != e->ino ||
        now.st_dev != s->control->source[e->source].dev)
        real[0] = 0;
    return 1;
}

int monarch_is_copy(int fd, char *real) {
    struct stat st;
    return __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE) && sys_fstat(fd, &st) == 0 &&
           describes_copy(&st, real);
}

int monarch_names_copy(const char *path, char *real) {
    struct stat st;
    if (!path || path[0] != '/' || (path[1] != 'p' && path[1] != 'd') ||
        (strncmp(path, "/proc/", 6) != 0 && strncmp(path, "/dev/fd/", 8) != 0 &&
         strncmp(path, "/dev/std", 8) != 0))
        return 0;
    return __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE) &&
           sys_fstatat(AT_FDCWD, path, &st, 0) == 0 && describes_copy(&st, real);
}

/* `st` is of what is to change; whether it was a copy, and its source file is instead. */
static int record(struct stat *st, char *real) {
    struct session *s = session_for_change();
    int is_copy = describes_copy(st, real);
    if (s && (!is_copy || sys_fstatat(AT_FDCWD, real, st, AT_SYMLINK_NOFOLLOW) == 0))
        mark_all(s, st);
    return is_copy;
}

const char *monarch_path_to_change(int dir, const char *path, int follow, char *real) {
    struct stat st;
    if (!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE) ||
        sys_fstatat(dir, path, &st, follow ? 0 : AT_SYMLINK_NOFOLLOW) != 0)
        return path;
    return record(&st, real) ? real : path;
}

const char *monarch_fd_to_change(int fd, char *real) {
    struct stat st;
    if (!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE) || sys_fstat(fd, &st) != 0)
        return NULL;
    return record(&st, real) ? real : NULL;
}
