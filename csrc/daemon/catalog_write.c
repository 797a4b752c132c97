#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "doorbell.h"
#include "native.h"
#include "path.h"
#include "sys.h"

/* Of an index, two thirds are in use, or little more: a probe then ends in one cache line, mostly.
 */
#define FULL(slots) ((slots) / 3 * 2)

uint64_t monarch_catalog_bytes(uint64_t capacity, uint64_t pool_bytes) {
    struct monarch_catalog c;
    monarch_lay_out(&c, capacity, pool_bytes);
    return c.bytes;
}

void monarch_catalog_init(void *map, uint64_t generation, uint64_t capacity, uint64_t pool_bytes) {
    struct monarch_catalog *c = map;
    memset(c, 0, sizeof *c);
    c->magic = MONARCH_MAGIC;
    c->generation = generation;
    monarch_lay_out(c, capacity, pool_bytes);
}

static uint64_t next(const struct monarch_catalog *c, uint64_t i) {
    return i + 1 == c->slots ? 0 : i + 1;
}

static void put_inode(struct monarch_catalog *c, const struct monarch_entry *e, uint64_t id) {
    uint32_t *slots = (uint32_t *)((char *)c + c->inodes_at);
    uint64_t hash = monarch_mix(e->ino + e->source), i = monarch_first_slot(hash, c->slots);
    while (slots[i])
        i = next(c, i);
    __atomic_store_n(&slots[i], monarch_inode_slot(hash, id), __ATOMIC_SEQ_CST);
    c->inodes_used++;
}

/* The upper half of a copy's slot is the lower half of its hash. */
static void put_copy(struct monarch_catalog *c, uint64_t ino, unsigned tier, uint64_t id) {
    uint64_t *slots = (uint64_t *)((char *)c + c->copies_at);
    uint64_t hash = monarch_mix(ino + tier), i = monarch_first_slot(hash, c->slots);
    while (slots[i])
        i = next(c, i);
    __atomic_store_n(&slots[i], hash << 32 | (id + 1), __ATOMIC_SEQ_CST);
    c->copies_used++;
}

static struct monarch_slot *slot_in(struct monarch_catalog *c, uint64_t i) {
    return (struct monarch_slot *)((char *)c + c->index_at) + i;
}

static void put_path(struct monarch_catalog *c, const struct monarch_entry *e, uint64_t id) {
    uint64_t i = monarch_first_path_slot(e->hash, c->slots);
    while (slot_in(c, i)->place)
        i = next(c, i);
    __atomic_store_n(&slot_in(c, i)->copy, monarch_guess_of(e->hash, e->word), __ATOMIC_SEQ_CST);
    __atomic_store_n(&slot_in(c, i)->place, monarch_slot_of(e->hash, e->path, id),
                     __ATOMIC_SEQ_CST);
}

/* The word, and what the index says of it. A guess may be old, so that the order is of no account;
 * but what was set last stays. */
static void set_word(struct monarch_catalog *c, struct monarch_entry *e, uint64_t id,
                     uint64_t word) {
    uint64_t old = e->word;
    int was_guessed = MONARCH_WORD_STATE(old) == MONARCH_PRESENT;
    __atomic_store_n(&e->word, word, __ATOMIC_SEQ_CST);
    /* A copy that is gone is known by its slot or its stamp. Its inode's number would come into the
     * index of a larger catalog once more, and for the first tier. */
    if (MONARCH_WORD_COPY(old) && !MONARCH_WORD_COPY(word))
        __atomic_store_n(&e->copy_ino, 0, __ATOMIC_SEQ_CST);
    if (!was_guessed && MONARCH_WORD_STATE(word) != MONARCH_PRESENT)
        return;
    uint64_t i = monarch_first_path_slot(e->hash, c->slots), place;
    while ((place = slot_in(c, i)->place) && monarch_slot_id(place) != id)
        i = next(c, i);
    if (place)
        __atomic_store_n(&slot_in(c, i)->copy, monarch_guess_of(e->hash, word), __ATOMIC_SEQ_CST);
}

static uint64_t text_bytes(uint64_t len) {
    return (len + 1 + MONARCH_TEXT_UNIT - 1) / MONARCH_TEXT_UNIT * MONARCH_TEXT_UNIT;
}

static uint64_t put_text(struct monarch_catalog *c, const char *text, uint64_t len) {
    uint64_t at = c->pool_used;
    memcpy((char *)c + c->pool_at + at, text, len + 1);
    c->pool_used += text_bytes(len);
    return at;
}

static void index_entry(struct monarch_catalog *c, uint64_t id) {
    const struct monarch_entry *e = &monarch_entries(c)[id];
    put_inode(c, e, id);
    put_path(c, e, id);
}

/* An entry comes again: a file that a client told of, when the scan meets it; a directory, once by
 * its own name and once with all the names in it, in either order. */
static void meet_again(struct monarch_entry *mine, const struct monarch_entry *e) {
    if (e->place != MONARCH_NO_PLACE)
        mine->place = e->place;
    if (mine->kind == MONARCH_DIR && e->kind == MONARCH_DIR)
        mine->sum =
            e->ino == mine->ino && e->mtime_ns == mine->mtime_ns && e->ctime_ns == mine->ctime_ns
                ? mine->sum | e->sum
                : 0;
}

uint64_t monarch_catalog_add(struct monarch_catalog *c, const struct monarch_entry *entries,
                             uint64_t n, const char *pool, uint64_t *ids, uint64_t *added) {
    struct monarch_entry *table = (struct monarch_entry *)((char *)c + c->entries_at);
    for (uint64_t i = 0; i < n; i++) {
        const struct monarch_entry *e = &entries[i];
        const char *path = pool + e->path, *target = pool + e->copy_ino;
        int64_t known = monarch_find(c, e->source, path, e->path_len);
        if (known >= 0) {
            ids[i] = (uint64_t)known;
            meet_again(&table[known], e);
            continue;
        }
        uint64_t text =
            text_bytes(e->path_len) + (e->kind == MONARCH_LINK ? text_bytes(strlen(target)) : 0);
        if (c->count >= c->capacity || c->pool_used + text > c->pool_bytes)
            return i;
        struct monarch_entry *mine = &table[c->count];
        *mine = *e;
        mine->hash = monarch_path_hash(e->source, path, e->path_len);
        mine->path = put_text(c, path, e->path_len);
        mine->copy_ino = e->kind == MONARCH_LINK ? put_text(c, target, strlen(target)) : 0;
        ids[i] = c->count;
        if (e->place == MONARCH_NO_PLACE)
            monarch_catalog_unlist(c, monarch_catalog_parent(c, mine));
        index_entry(c, c->count);
        __atomic_store_n(&c->count, c->count + 1, __ATOMIC_SEQ_CST);
        ++*added;
    }
    return n;
}

int monarch_catalog_update(struct monarch_catalog *c, uint64_t id,
                           const struct monarch_entry *fresh) {
    struct monarch_entry *e = (struct monarch_entry *)((char *)c + c->entries_at) + id;
    uint64_t old_ino = e->ino;
    /* What can still be added has its slots. */
    if (fresh->ino != old_ino && c->inodes_used + (c->capacity - c->count) >= c->slots / 8 * 7)
        return -1;
    uint32_t version = e->version;
    __atomic_store_n(&e->version, version + 1, __ATOMIC_SEQ_CST);
    /* What readers look the entry up by stays as it is; so do its word and its place. */
#define REPLACE(field) __atomic_store_n(&e->field, fresh->field, __ATOMIC_RELEASE)
    REPLACE(ino);
    REPLACE(size);
    REPLACE(copy_ino); /* 0: there is no copy */
    REPLACE(sum);
    REPLACE(blksize);
    REPLACE(flags);
    REPLACE(mtime_ns);
    REPLACE(ctime_ns);
    REPLACE(atime_ns);
    REPLACE(btime_ns);
    REPLACE(blocks);
    REPLACE(mode);
    REPLACE(uid);
    REPLACE(gid);
    REPLACE(nlink);
#undef REPLACE
    __atomic_store_n(&e->version, version + 2, __ATOMIC_SEQ_CST);
    if (e->ino != old_ino)
        put_inode(c, e, id);
    return 0;
}

int monarch_catalog_copy(const struct monarch_catalog *from, struct monarch_catalog *to) {
    struct monarch_entry *table = (struct monarch_entry *)((char *)to + to->entries_at);
    if (from->count > to->capacity || from->pool_used > to->pool_bytes || to->count)
        return -1;
    memcpy(table, monarch_entries(from), from->count * sizeof *table);
    uint64_t names = from->capacity < to->capacity ? from->capacity : to->capacity;
    memcpy((char *)to + to->names_at, monarch_names(from), names * sizeof(uint32_t));
    memcpy((char *)to + to->pool_at, monarch_pool(from, 0), from->pool_used);
    to->pool_used = from->pool_used;
    to->stamped = from->stamped;
    to->evicting = from->evicting;
    to->salt = from->salt;
    for (uint64_t id = 0; id < from->count; id++) {
        const struct monarch_entry *e = &table[id];
        index_entry(to, id);
        if (e->kind == MONARCH_FILE && e->copy_ino && MONARCH_WORD_COPY(e->word) &&
            MONARCH_WORD_TIER(e->word) + 1 != to->stamped)
            put_copy(to, e->copy_ino, MONARCH_WORD_TIER(e->word), id);
    }
    to->count = from->count;
    return 0;
}

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

void monarch_collapse(const char *path) {
    struct stat st;
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && st.st_size >= MONARCH_HUGE_PAGE) {
        uint64_t bytes = (uint64_t)st.st_size, huge = bytes / MONARCH_HUGE_PAGE * MONARCH_HUGE_PAGE;
        char *map = sys_map_aligned(fd, bytes, PROT_READ | PROT_WRITE, MONARCH_HUGE_PAGE);
        /* One huge page at a time: when memory is short, those that were had remain. */
        for (uint64_t at = 0; map && at < huge; at += MONARCH_HUGE_PAGE)
            if (madvise(map + at, MONARCH_HUGE_PAGE, MADV_COLLAPSE) != 0)
                break;
        if (map)
            munmap(map, bytes);
    }
    close(fd);
}

void monarch_set_words(struct monarch_catalog *c, uint64_t n, const uint64_t *ids,
                       const uint64_t *words) {
    struct monarch_entry *table = (struct monarch_entry *)((char *)c + c->entries_at);
    for (uint64_t i = 0; i < n; i++)
        set_word(c, &table[ids[i]], ids[i], words[i]);
}

static int is_stamped(const struct monarch_catalog *c, uint64_t word, int is_made) {
    unsigned tier = MONARCH_WORD_TIER(word);
    return tier + 1 == c->stamped || (is_made && (c->evicting >> tier & 1));
}

int monarch_publish(struct monarch_catalog *c, uint64_t n, const uint64_t *ids,
                    const uint64_t *words, const uint64_t *copy_inos, const uint64_t *sums,
                    const uint8_t *made) {
    struct monarch_entry *table = (struct monarch_entry *)((char *)c + c->entries_at);
    uint64_t places = 0;
    for (uint64_t i = 0; i < n; i++)
        places += !is_stamped(c, words[i], made && made[i]);
    if (places && c->copies_used + places > FULL(c->slots))
        return -1;
    for (uint64_t i = 0; i < n; i++) {
        struct monarch_entry *e = &table[ids[i]];
        unsigned tier = MONARCH_WORD_TIER(words[i]);
        /* A dropped copy's entry keeps its inode for descriptors that are still open. Once the file
         * system gives the number to another copy there are none. */
        int has_stamp = is_stamped(c, words[i], made && made[i]);
        int64_t old = has_stamp ? -1 : monarch_find_copy(c, tier, copy_inos[i]);
        if (old >= 0 && (uint64_t)old != ids[i])
            __atomic_store_n(&table[old].copy_ino, 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&e->sum, sums[i], __ATOMIC_RELEASE);
        __atomic_store_n(&e->copy_ino, copy_inos[i], __ATOMIC_SEQ_CST);
        if (!has_stamp)
            put_copy(c, copy_inos[i], tier, ids[i]);
        set_word(c, e, ids[i], words[i]);
    }
    return 0;
}

static int64_t find_behind_links(const struct monarch_control *k, const struct monarch_clients *m,
                                 const struct monarch_catalog *c, unsigned source,
                                 const char *path) {
    struct monarch_place place;
    monarch_resolve(k, c, m, k->source[source].path, path, 1, &place);
    return place.entry < 0 ? -1 : place.entry;
}

void monarch_find_all(const struct monarch_control *k, const struct monarch_clients *m,
                      const struct monarch_catalog *c, unsigned source, const char *prefix,
                      uint64_t prefix_len, const char *pool, const uint64_t *starts, uint64_t n,
                      int64_t *ids) {
    char path[MONARCH_PATH_MAX];
    for (uint64_t i = 0; i < n; i++) {
        uint64_t len = starts[i + 1] - starts[i];
        ids[i] = -1;
        if (starts[i + 1] < starts[i] || prefix_len + len >= sizeof path)
            continue;
        memcpy(path, prefix, prefix_len);
        memcpy(path + prefix_len, pool + starts[i], len);
        path[prefix_len + len] = 0;
        ids[i] = monarch_find(c, source, path, prefix_len + len);
        if (ids[i] < 0 || monarch_entries(c)[ids[i]].kind == MONARCH_LINK)
            ids[i] = find_behind_links(k, m, c, source, path);
    }
}

static uint64_t take_bits(uint64_t *bitmap, uint64_t count, uint64_t *ids, uint64_t max) {
    uint64_t n = 0, words = (count + 63) / 64;
    if (words > MONARCH_MAX_FILES / 64)
        words = MONARCH_MAX_FILES / 64;
    for (uint64_t w = 0; w < words && n + 64 <= max; w++) {
        if (!__atomic_load_n(&bitmap[w], __ATOMIC_RELAXED))
            continue;
        uint64_t bits = __atomic_exchange_n(&bitmap[w], 0, __ATOMIC_SEQ_CST);
        for (; bits; bits &= bits - 1) {
            uint64_t id = w * 64 + (uint64_t)__builtin_ctzll(bits);
            if (id < count) /* a client of an earlier daemon may set any bit */
                ids[n++] = id;
        }
    }
    return n;
}

uint64_t monarch_take_wants(struct monarch_clients *m, uint64_t count, uint64_t *ids,
                            uint64_t max) {
    return take_bits(m->wanted, count, ids, max);
}

uint64_t monarch_take_opened(struct monarch_clients *m, uint64_t count, uint64_t *ids,
                             uint64_t max) {
    return take_bits(m->opened, count, ids, max);
}

void monarch_find_changed(const struct monarch_clients *m, const struct monarch_control *k,
                          const struct monarch_catalog *c, uint64_t n, const uint64_t *ids,
                          uint8_t *flags) {
    for (uint64_t i = 0; i < n; i++) {
        const struct monarch_entry *e = &monarch_entries(c)[ids[i]];
        flags[i] = (uint8_t)monarch_is_changed(m, k->source[e->source].dev, e->ino);
    }
}

uint32_t monarch_wait_doorbell(struct monarch_clients *m, uint32_t seen, int timeout_ms) {
    struct timespec limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    __atomic_store_n(&m->sleeping, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&m->doorbell, __ATOMIC_SEQ_CST) == seen)
        syscall(SYS_futex, &m->doorbell, FUTEX_WAIT, seen, &limit, NULL, 0);
    __atomic_store_n(&m->sleeping, 0, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&m->doorbell, __ATOMIC_SEQ_CST);
}

void monarch_ring_doorbell(struct monarch_clients *m) { monarch_doorbell_ring(&m->doorbell); }
