/* Writes the catalog: adds entries, replaces their attributes, and moves them to a larger
 * segment. */
#include "publish/writer.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shared/sys.h"

/* Maximum time [ns] for which monarch_lock_soon waits for the writer's lock. */
#define LOCK_NS 20000000L

struct monarch_writer *monarch_writer_new(void) {
    struct monarch_writer *w = calloc(1, sizeof *w);
    if (w)
        pthread_mutex_init(&w->lock, NULL);
    return w;
}

void monarch_writer_free(struct monarch_writer *w) {
    pthread_mutex_destroy(&w->lock);
    free(w);
}

int monarch_lock_soon(struct monarch_writer *w) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOCK_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return pthread_mutex_timedlock(&w->lock, &until) == 0;
}

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

static void put_inode(struct monarch_catalog *c, const struct monarch_entry *e, uint64_t id) {
    uint32_t *slots = (uint32_t *)((char *)c + c->inodes_at);
    uint64_t hash = monarch_mix(e->ino + e->source), i = monarch_first_slot(hash, c->slots);
    while (slots[i])
        i = monarch_next_slot(c, i);
    __atomic_store_n(&slots[i], monarch_inode_slot(hash, id), __ATOMIC_SEQ_CST);
    c->inodes_used++;
}

static void put_path(struct monarch_catalog *c, const struct monarch_entry *e, uint64_t id) {
    uint64_t i = monarch_first_path_slot(e->hash, c->slots);
    while (monarch_path_slot(c, i)->place)
        i = monarch_next_slot(c, i);
    __atomic_store_n(&monarch_path_slot(c, i)->copy, monarch_guess_of(e->hash, e->word),
                     __ATOMIC_SEQ_CST);
    __atomic_store_n(&monarch_path_slot(c, i)->place, monarch_slot_of(e->hash, e->path, id),
                     __ATOMIC_SEQ_CST);
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

/* Merges the found entry `e` into the catalog's entry `mine` with the same path. There are two
 * cases. First, a client reported the file before the scan found it. Second, the scan adds each
 * directory twice: as a name in its parent, and with the number of its own names. Either may come
 * first. */
static void meet_again(struct monarch_entry *mine, const struct monarch_entry *e) {
    int is_same = e->kind == mine->kind && e->ino == mine->ino && e->size == mine->size &&
                  e->mtime_ns == mine->mtime_ns && e->ctime_ns == mine->ctime_ns;
    /* A file that was replaced before its directory was listed gets no place in the listing. So
     * later comparisons with the source check this file individually. The directory's times do not
     * reveal this replacement, because it came before the listing. */
    if (e->place != MONARCH_NO_PLACE && (is_same || mine->kind == MONARCH_DIR))
        mine->place = e->place;
    if (mine->kind == MONARCH_DIR && e->kind == MONARCH_DIR)
        mine->sum =
            e->ino == mine->ino && e->mtime_ns == mine->mtime_ns && e->ctime_ns == mine->ctime_ns
                ? mine->sum | e->sum
                : 0;
}

uint64_t monarch_add(struct monarch_catalog *c, const struct monarch_entry *entries, uint64_t n,
                     const char *pool, uint64_t *ids, uint64_t *added) {
    struct monarch_entry *table = monarch_table(c);
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

uint64_t monarch_catalog_add(struct monarch_writer *w, const struct monarch_entry *entries,
                             uint64_t n, const char *pool, uint64_t *ids, uint64_t *added) {
    pthread_mutex_lock(&w->lock);
    uint64_t taken = monarch_add(w->catalog, entries, n, pool, ids, added);
    pthread_mutex_unlock(&w->lock);
    return taken;
}

static void set_flags(struct monarch_entry *e, unsigned which, unsigned flags) {
    uint16_t now = (uint16_t)((e->flags & ~which) | (flags & which));
    __atomic_store_n(&e->flags, now, __ATOMIC_RELAXED);
}

static int update(struct monarch_catalog *c, uint64_t id, const struct monarch_entry *fresh) {
    struct monarch_entry *e = monarch_table(c) + id;
    uint64_t old_ino = e->ino;
    /* A new inode number needs one more slot in the index by inode. The update is refused if too
     * few slots would be left for the entries that can still be added. */
    if (fresh->ino != old_ino && c->inodes_used + (c->capacity - c->count) >= c->slots / 8 * 7)
        return -1;
    uint32_t version = e->version;
    __atomic_store_n(&e->version, version + 1, __ATOMIC_SEQ_CST);
    /* The entry's source, kind, path, word and place are not replaced. */
#define REPLACE(field) __atomic_store_n(&e->field, fresh->field, __ATOMIC_RELEASE)
    REPLACE(ino);
    REPLACE(size);
    REPLACE(copy_ino); /* becomes 0, because the file has no copy */
    REPLACE(sum);
    REPLACE(blksize);
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
    set_flags(e, MONARCH_ATTRIBUTES, fresh->flags);
    __atomic_store_n(&e->version, version + 2, __ATOMIC_SEQ_CST);
    if (e->ino != old_ino)
        put_inode(c, e, id);
    return 0;
}

int monarch_catalog_update(struct monarch_writer *w, uint64_t id,
                           const struct monarch_entry *fresh) {
    pthread_mutex_lock(&w->lock);
    int r = update(w->catalog, id, fresh);
    pthread_mutex_unlock(&w->lock);
    return r;
}

void monarch_set_home(struct monarch_catalog *c, uint64_t id, unsigned home) {
    if (id < c->count)
        set_flags(&monarch_table(c)[id], MONARCH_OWN | MONARCH_OF_OTHERS, home);
}

static int copy(const struct monarch_catalog *from, struct monarch_catalog *to) {
    struct monarch_entry *table = monarch_table(to);
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
            monarch_put_copy(to, e->copy_ino, MONARCH_WORD_TIER(e->word), id);
    }
    to->count = from->count;
    return 0;
}

int monarch_catalog_move(struct monarch_writer *w, struct monarch_catalog *to,
                         uint64_t *generation) {
    pthread_mutex_lock(&w->lock);
    int r = w->catalog ? copy(w->catalog, to) : 0;
    if (r == 0) {
        w->catalog = to;
        __atomic_store_n(generation, to->generation, __ATOMIC_SEQ_CST);
    }
    pthread_mutex_unlock(&w->lock);
    return r;
}

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1 */
#endif

void monarch_collapse(const char *path) {
    struct stat st;
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && st.st_size >= MONARCH_HUGE_PAGE) {
        uint64_t bytes = (uint64_t)st.st_size, huge = bytes / MONARCH_HUGE_PAGE * MONARCH_HUGE_PAGE;
        char *map = sys_map_aligned(fd, bytes, PROT_READ | PROT_WRITE, MONARCH_HUGE_PAGE);
        /* Each call of madvise replaces 2 MiB of small pages by one huge page. If a call fails, the
         * huge pages made so far remain. */
        for (uint64_t at = 0; map && at < huge; at += MONARCH_HUGE_PAGE)
            if (madvise(map + at, MONARCH_HUGE_PAGE, MADV_COLLAPSE) != 0)
                break;
        if (map)
            munmap(map, bytes);
    }
    close(fd);
}
