#define _GNU_SOURCE
#include "serve.h"

#include <string.h>

#include "attributes.h"
#include "bytes.h"
#include "demand.h"
#include "log.h"
#include "rank.h"
#include "sys.h"
#include "track.h"

/* Every open writes a name: 16 hexadecimal digits at once, of which the number's are the first. */
void monarch_copy_path(const struct monarch_tier *tier, uint64_t number, char *out) {
    const unsigned unused = 4 * (16 - MONARCH_COPY_NAME);
    two_words bytes = {__builtin_bswap64(number << unused), 0};
    sixteen_bytes high = (sixteen_bytes)bytes >> 4, low = (sixteen_bytes)bytes & 15;
    sixteen_bytes digits = __builtin_shuffle(
        high, low, (sixteen_bytes){0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
    char *name = out + tier->path_len;
    memcpy(out, tier->path, tier->path_len);
    *(sixteen_bytes *)name = digits + '0' + ((sixteen_bytes)(digits > 9) & ('a' - '0' - 10));
    name[MONARCH_COPY_NAME] = 0;
}

/* What was asked for of files that are not to be filled at once: entry << 32 | KiB. A file that
 * shares its place with another begins again. */
static uint64_t asked[1024] SELDOM;

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
    o->waited = 1;
    return 1;
}

/* Why an open gets the source's file. */
static const char *why_source(const struct session *s, const struct monarch_entry *e) {
    static const char *const reasons[16] = {
        "left to the source", "source: no tier has room",    "source: excluded",
        "source: changed",    "source: could not be copied", "source: attributes",
    };
    static const char *const states[] = {"source: no copy yet", "source: wanted",
                                         "source: being copied", "source: its copy is gone"};
    uint64_t word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
    if (monarch_is_changed(s->clients, s->control->source[e->source].dev, e->ino))
        return reasons[MONARCH_CHANGED];
    unsigned state = MONARCH_WORD_STATE(word);
    return state < MONARCH_BYPASS ? states[state] : reasons[word >> 4 & 7];
}

static void count(struct session *s, int from_copy, uint64_t size, int missed) {
    struct monarch_stats *n = monarch_my_stats(s);
    __atomic_fetch_add(from_copy ? &n->hits : &n->misses, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(from_copy ? &n->bytes_from_tier : &n->bytes_from_source, size,
                       __ATOMIC_RELAXED);
    monarch_count_rank(s, size, missed);
}

/* The daemon looks in its own time: it is not rung, and an open that it has not seen yet costs the
 * next one of the same file a load. */
static void tell_opened(struct session *s, uint64_t id) {
    if (__builtin_expect(!__atomic_load_n(&s->control->follow_opens, __ATOMIC_RELAXED), 1) ||
        id >= MONARCH_MAX_FILES)
        return;
    uint64_t *word = &s->clients->opened[id / 64], bit = 1ULL << (id % 64);
    if (!(__atomic_load_n(word, __ATOMIC_RELAXED) & bit))
        __atomic_fetch_or(word, bit, __ATOMIC_RELAXED);
}

void monarch_opened_copy(struct session *s, const struct monarch_opening *o) {
    if (__builtin_expect(monarch_logging, 0))
        monarch_log("open", monarch_pool(monarch_catalog_of(s), o->entry->path), o->copy);
    count(s, 1, o->entry->size, o->waited);
    tell_opened(s, (uint64_t)o->id);
}

void monarch_opened_source(struct session *s, const struct monarch_opening *o, int flags, int fd) {
    struct stat st;
    if (__builtin_expect(monarch_logging, 0))
        monarch_log("open", o->entry ? monarch_pool(monarch_catalog_of(s), o->entry->path) : NULL,
                    o->entry ? why_source(s, o->entry) : "source: not scanned yet");
    if (o->entry) {
        uint64_t word = __atomic_load_n(&o->entry->word, __ATOMIC_ACQUIRE);
        count(s, 0, o->entry->size, MONARCH_WORD_STATE(word) != MONARCH_BYPASS);
        tell_opened(s, (uint64_t)o->id);
        if (MONARCH_WORD_STATE(word) != MONARCH_BYPASS && o->entry->size &&
            !(flags & ~(O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK | O_LARGEFILE)))
            monarch_track(s, fd, (uint64_t)o->id);
    }
    if (!o->entry && sys_fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        count(s, 0, (uint64_t)st.st_size, 1);
}

/* With `metadata: source`, each open asks whether the file is what its copy was made of. One that
 * is another is recorded as changed, for all. */
static int is_as_known(struct session *s, const struct monarch_entry *e, int dir, const char *path,
                       int flags) {
    uint64_t dev = s->control->source[e->source].dev;
    struct stat now;
    if (s->control->metadata_cached)
        return 1;
    if (sys_fstatat(dir, path, &now, flags & O_NOFOLLOW ? AT_SYMLINK_NOFOLLOW : 0) == 0 &&
        now.st_ino == e->ino && now.st_dev == dev && (uint64_t)now.st_size == e->size &&
        now.st_mtim.tv_sec * 1000000000 + now.st_mtim.tv_nsec == e->mtime_ns &&
        now.st_ctim.tv_sec * 1000000000 + now.st_ctim.tv_nsec == e->ctime_ns)
        return 1;
    monarch_mark_changed(s->clients, dev, e->ino);
    return 0;
}

int monarch_begin_look_up(struct session *s, int dir, const char *path, int flags,
                          struct monarch_aim *a, struct monarch_opening *o) {
    o->entry = NULL;
    o->id = MONARCH_OUTSIDE;
    o->served = o->waited = 0;
    o->word = 0;
    if (!path || flags & (O_PATH | O_DIRECTORY) /* these open no file */ ||
        monarch_is_far(dir, path) || !monarch_aim(s, dir, path, a))
        return 0;
    monarch_tick(s); /* while the memory that was asked for comes */
    if (a->source >= 0 && s->control->metadata_cached && !(flags & O_NOATIME)) {
        uint64_t word;
        a->likely = monarch_guess(a->catalog, a->hash, &word);
        unsigned tier = MONARCH_WORD_TIER(word);
        if (word && tier < s->control->tiers) {
            monarch_copy_path(&s->control->tier[tier], MONARCH_WORD_COPY(word), o->copy);
            o->word = word;
        }
    }
    return 1;
}

void monarch_look_up(struct session *s, int dir, const char *path, int flags,
                     struct monarch_opening *o) {
    struct monarch_aim a;
    if (monarch_begin_look_up(s, dir, path, flags, &a, o))
        monarch_end_look_up(s, &a, dir, path, flags, o);
}

void monarch_end_look_up(struct session *s, const struct monarch_aim *a, int dir, const char *path,
                         int flags, struct monarch_opening *o) {
    int64_t id = monarch_locate_aimed(s, a, dir, path, !(flags & O_NOFOLLOW), 1);
    if (id < 0) {
        o->id = id;
        return;
    }
    const struct monarch_entry *e = &monarch_entries(a->catalog)[id];
    if (e->kind != MONARCH_FILE)
        return;
    o->id = id;
    o->entry = e;
    /* Who does not own the file may not ask for it; every copy is our own. */
    if ((flags & O_NOATIME) && e->uid != (uid_t)sys6(SYS_geteuid, 0, 0, 0, 0, 0, 0))
        return;
    uint64_t word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
    if (MONARCH_WORD_STATE(word) == MONARCH_PRESENT && !monarch_is_off(s) &&
        !monarch_is_changed(s->clients, s->control->source[e->source].dev, e->ino) &&
        is_as_known(s, e, dir, path, flags)) {
        /* Guessed right, mostly: then the path is written already, and the copy open. Its number is
         * never given again: where it is dropped before the open, that fails and the source
         * answers. */
        if (!o->word || (word ^ o->word) >> 8)
            monarch_copy_path(&s->control->tier[MONARCH_WORD_TIER(word)], MONARCH_WORD_COPY(word),
                              o->copy);
        o->word = word;
        o->served = 1;
    } else if (MONARCH_WORD_STATE(word) == MONARCH_ABSENT ||
               MONARCH_WORD_STATE(word) == MONARCH_WANTED) {
        monarch_want(s, e, (uint64_t)id, 0); /* one that is filled ahead is in use from now on */
    }
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
