#include "shared/catalog.h"

#include <string.h>

#include "shared/bytes.h"
#include "shared/xxh3.h"

/* The indexes are hash tables with linear probing. A slot holds an entry's number and a part of the
 * entry's hash. This part nearly always differs between entries, so a search hardly ever reads a
 * wrong entry. Slots are never freed. So readers need no lock, and no slot is ever marked as
 * deleted. */

uint64_t monarch_path_hash(unsigned source, const char *path, size_t len) {
    return monarch_xxh3(path, len) ^ monarch_mix(source);
}

static uint64_t next(uint64_t slot, uint64_t slots) { return slot + 1 == slots ? 0 : slot + 1; }

static const uint64_t *copies_of(const struct monarch_catalog *c) {
    return (const uint64_t *)((const char *)c + c->copies_at);
}

static const struct monarch_slot *index_of(const struct monarch_catalog *c) {
    return (const struct monarch_slot *)((const char *)c + c->index_at);
}

uint64_t monarch_prepare_find(const struct monarch_catalog *c, unsigned source, const char *path,
                              size_t len) {
    uint64_t hash = monarch_path_hash(source, path, len);
    const struct monarch_slot *first = &index_of(c)[monarch_first_path_slot(hash, c->slots)];
    __builtin_prefetch(first);
    /* Also prefetch the next cache line, because one search in eleven reads it. */
    __builtin_prefetch(first + 4);
    return hash;
}

int64_t monarch_find(const struct monarch_catalog *c, unsigned source, const char *path,
                     size_t len) {
    return monarch_find_prepared(c, source, path, len, monarch_path_hash(source, path, len), -1);
}

int64_t monarch_guess(const struct monarch_catalog *c, uint64_t hash, uint64_t *word) {
    const struct monarch_slot *index = index_of(c);
    uint64_t slots = c->slots, i = monarch_first_path_slot(hash, slots);
    *word = 0;
    for (uint64_t n = 0; n < slots; i = next(i, slots), n++) {
        uint64_t slot = __atomic_load_n(&index[i].place, __ATOMIC_ACQUIRE);
        uint64_t copy = __atomic_load_n(&index[i].copy, __ATOMIC_ACQUIRE);
        if (!slot)
            return -1;
        if (slot >> 56 != (hash & 255) || (copy && (copy & 255) != (hash >> 8 & 255)))
            continue;
        uint64_t id = monarch_slot_id(slot), at = monarch_slot_text(slot);
        if (id >= c->capacity || at >= c->pool_bytes) /* the slot is damaged */
            continue;
        __builtin_prefetch(&monarch_entries(c)[id]);
        __builtin_prefetch(monarch_pool(c, at));
        *word = copy;
        return (int64_t)id;
    }
    return -1;
}

static int is_path_of(const struct monarch_catalog *c, const struct monarch_entry *e,
                      unsigned source, const char *path, size_t len, uint64_t hash) {
    return e->hash == hash && e->source == source && e->path_len == len &&
           /* if the entry is damaged, its path may lie outside the pool */
           e->path < c->pool_bytes && len < c->pool_bytes - e->path &&
           same_bytes(monarch_pool(c, e->path), path, len);
}

int64_t monarch_find_prepared(const struct monarch_catalog *c, unsigned source, const char *path,
                              size_t len, uint64_t hash, int64_t likely) {
    const struct monarch_entry *entries = monarch_entries(c);
    const struct monarch_slot *index = index_of(c);
    if (likely >= 0 && is_path_of(c, &entries[likely], source, path, len, hash))
        return likely;
    uint64_t slots = c->slots, i = monarch_first_path_slot(hash, slots);
    for (uint64_t n = 0; n < slots; i = next(i, slots), n++) {
        uint64_t slot = __atomic_load_n(&index[i].place, __ATOMIC_ACQUIRE);
        if (!slot)
            return -1;
        if (slot >> 56 != (hash & 255))
            continue;
        uint64_t id = monarch_slot_id(slot), at = monarch_slot_text(slot);
        if (id >= c->capacity || at >= c->pool_bytes) /* the slot is damaged */
            continue;
        __builtin_prefetch(monarch_pool(c, at));
        if (is_path_of(c, &entries[id], source, path, len, hash))
            return (int64_t)id;
    }
    return -1;
}

int64_t monarch_find_hash(const struct monarch_catalog *c, unsigned source, uint64_t hash) {
    const struct monarch_entry *entries = monarch_entries(c);
    const struct monarch_slot *index = index_of(c);
    uint64_t slots = c->slots, i = monarch_first_path_slot(hash, slots);
    for (uint64_t n = 0; n < slots; i = next(i, slots), n++) {
        uint64_t slot = __atomic_load_n(&index[i].place, __ATOMIC_ACQUIRE);
        if (!slot)
            return -1;
        uint64_t id = monarch_slot_id(slot);
        if (slot >> 56 == (hash & 255) && id < c->capacity && entries[id].hash == hash &&
            entries[id].source == source)
            return (int64_t)id;
    }
    return -1;
}

int64_t monarch_find_inode(const struct monarch_catalog *c, unsigned source, uint64_t ino) {
    const struct monarch_entry *entries = monarch_entries(c);
    const uint32_t *inodes = (const uint32_t *)((const char *)c + c->inodes_at);
    uint64_t hash = monarch_mix(ino + source), slots = c->slots;
    for (uint64_t i = monarch_first_slot(hash, slots), n = 0; n < slots; i = next(i, slots), n++) {
        uint32_t slot = __atomic_load_n(&inodes[i], __ATOMIC_ACQUIRE);
        if (!slot)
            return -1;
        uint64_t id = monarch_slot_id(slot);
        if (id >= c->capacity) /* the slot is damaged */
            continue;
        const struct monarch_entry *e = &entries[id];
        if (slot == monarch_inode_slot(hash, id) &&
            __atomic_load_n(&e->ino, __ATOMIC_RELAXED) == ino && e->source == source)
            return e - entries;
    }
    return -1;
}

int64_t monarch_find_copy(const struct monarch_catalog *c, unsigned tier, uint64_t ino) {
    const struct monarch_entry *entries = monarch_entries(c);
    const uint64_t *copies = copies_of(c), slots = c->slots;
    uint64_t hash = monarch_mix(ino + tier);
    for (uint64_t i = monarch_first_slot(hash, slots), n = 0; n < slots; i = next(i, slots), n++) {
        uint64_t slot = __atomic_load_n(&copies[i], __ATOMIC_ACQUIRE);
        if (!slot)
            return -1;
        uint64_t id = (slot & 0xFFFFFFFFU) - 1;
        if (id >= c->capacity) /* the slot is damaged */
            continue;
        const struct monarch_entry *e = &entries[id];
        /* The slot of a removed copy is not freed. The file may now have no copy, or a new copy
         * with another inode. So the search also compares the inode and the tier of the current
         * copy. */
        if (slot >> 32 == (hash & 0xFFFFFFFFU) && e->kind == MONARCH_FILE &&
            __atomic_load_n(&e->copy_ino, __ATOMIC_RELAXED) == ino &&
            MONARCH_WORD_TIER(__atomic_load_n(&e->word, __ATOMIC_ACQUIRE)) == tier)
            return e - entries;
    }
    return -1;
}

int64_t monarch_find_stamped(const struct monarch_catalog *c, unsigned tier, uint64_t ino,
                             int64_t sec, int64_t nsec, int is_dropped) {
    uint64_t id = (uint64_t)sec;
    if (id >= c->capacity || id >= __atomic_load_n(&c->count, __ATOMIC_ACQUIRE) ||
        (uint64_t)nsec != monarch_stamp(c->salt, id))
        return -1;
    const struct monarch_entry *e = &monarch_entries(c)[id];
    if (e->kind != MONARCH_FILE)
        return -1;
    return is_dropped || (__atomic_load_n(&e->copy_ino, __ATOMIC_RELAXED) == ino &&
                          MONARCH_WORD_TIER(__atomic_load_n(&e->word, __ATOMIC_ACQUIRE)) == tier)
               ? (int64_t)id
               : -1;
}

int64_t monarch_find_dropped(const struct monarch_catalog *c, unsigned tier, uint64_t ino) {
    const uint64_t *copies = copies_of(c), slots = c->slots;
    uint64_t hash = monarch_mix(ino + tier);
    int64_t last = -1;
    for (uint64_t i = monarch_first_slot(hash, slots), n = 0; n < slots; i = next(i, slots), n++) {
        uint64_t slot = __atomic_load_n(&copies[i], __ATOMIC_ACQUIRE);
        if (!slot)
            break;
        if (slot >> 32 == (hash & 0xFFFFFFFFU) && (slot & 0xFFFFFFFFU) - 1 < c->capacity)
            last = (int64_t)(slot & 0xFFFFFFFFU) - 1;
    }
    return last;
}

void monarch_catalog_count(const struct monarch_catalog *c, uint64_t *files, uint64_t *bytes) {
    const struct monarch_entry *e = monarch_entries(c);
    uint64_t count = __atomic_load_n(&c->count, __ATOMIC_ACQUIRE);
    for (const struct monarch_entry *end = e + count; e < end; e++) {
        if (e->kind != MONARCH_FILE || e->source >= MONARCH_MAX_SOURCES)
            continue;
        uint64_t i = e->source * 256U + (__atomic_load_n(&e->word, __ATOMIC_RELAXED) & 0xFF);
        files[i]++;
        bytes[i] += e->size;
    }
}

static uint64_t mask_of(uint64_t bit) { return 1ULL << (bit % 64); }

/* Sets the file's two bits first and the coarse bit last; readers read them in the opposite order.
 * So if a reader finds the coarse bit unset, the file is unmarked, or this function has not
 * finished. */
void monarch_mark_changed(struct monarch_clients *m, uint64_t dev, uint64_t ino) {
    uint64_t bit = monarch_filter_bit(dev, ino), second = monarch_filter_second(dev, ino);
    uint64_t coarse = bit / MONARCH_FILTER_COARSE;
    if (monarch_is_marked(m, dev, ino))
        return;
    __atomic_fetch_or(&m->changed[second / 64], mask_of(second), __ATOMIC_SEQ_CST);
    __atomic_fetch_or(&m->changed[bit / 64], mask_of(bit), __ATOMIC_SEQ_CST);
    __atomic_fetch_or(&m->changed_coarse[coarse / 64], mask_of(coarse), __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&m->changes, 1, __ATOMIC_SEQ_CST);
}

int monarch_is_changed(const struct monarch_clients *m, uint64_t dev, uint64_t ino) {
    return __atomic_load_n(&m->told, __ATOMIC_SEQ_CST) || monarch_is_marked(m, dev, ino);
}

/* Reads the number of marks (`changes`) first. This number is 0 until the first file is marked, and
 * most jobs mark no file. */
int monarch_is_marked(const struct monarch_clients *m, uint64_t dev, uint64_t ino) {
    if (!__atomic_load_n(&m->changes, __ATOMIC_SEQ_CST))
        return 0;
    uint64_t bit = monarch_filter_bit(dev, ino);
    return monarch_bit_is_set(m->changed_coarse, bit / MONARCH_FILTER_COARSE) &&
           monarch_bit_is_set(m->changed, bit) &&
           monarch_bit_is_set(m->changed, monarch_filter_second(dev, ino));
}
