/* Finds the copy of a file that a peer requests, and determines how much of the copy can be sent.
 * This depends only on the entry's word in the catalog and on the fill's bitmap. This node's own
 * programs read copies by the same rule. */
#include "serving/open_copy.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "serving/sums.h"
#include "shared/clock.h"
#include "shared/doorbell.h"

/* Number of demand slots that can be used for requests of peers. The other slots are reserved for
 * this node's readers. */
#define DEMANDS (MONARCH_DEMANDS / 4)
/* If no source has returned data for this long [ns], the sources may be stuck. Then peers are not
 * told to repeat their requests. A reader on a peer should wait at most 2 s before it reads the
 * source itself. So STUCK_NS and the time limit of an answer are less than 2 s together. */
#define STUCK_NS 1000000000ULL
/* Maximum number of times that is_meant reads an entry's attributes. It must read them again if the
 * daemon has changed them during the read. */
#define LOOKS 3

typedef struct monarch_holdings holdings;

static void want(holdings *h, uint64_t id) {
    if (monarch_set_bit(&h->clients->wanted, id))
        monarch_doorbell_ring(&h->clients->doorbell);
}

/* Writes a demand for a unit into a slot, as a waiting reader does. So this unit is filled before
 * units that nobody waits for. The engine or the daemon's loop removes the demand. of: the origin
 * from which the file is filled; MONARCH_ORIGINS: not known. */
static void demand(holdings *h, uint64_t id, uint64_t unit, enum monarch_origin of) {
    uint64_t *to = NULL, none = 0;
    for (int i = 0; i < DEMANDS; i++) {
        uint64_t *at = &h->clients->demand[i], d = __atomic_load_n(at, __ATOMIC_RELAXED);
        if (d && monarch_demand_entry(d) == id && monarch_demand_unit(d) == unit)
            return;
        to = d || to ? to : at;
    }
    uint32_t tag = __atomic_fetch_add(&h->next_tag, 2, __ATOMIC_RELAXED);
    if (to && __atomic_compare_exchange_n(to, &none, monarch_demand(id, unit, tag, 0), 0,
                                          __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        monarch_ring_for_demand(h->clients, of);
}

/* Returns whether to write a demand for the requested bytes. The result is 1 in two cases: a reader
 * on the peer waits, or at most one unit is requested. It is always 0 if the file has more units
 * than a fill's bitmap has bits.
 *
 * The second case prevents a deadlock, because a node orders only a limited number of fills at the
 * same time. Suppose that two nodes have reached this limit, and all their fills are of small files
 * that they request from each other. Without demands, neither node could order the fills that the
 * other one needs. A demand gets its fill even beyond the limit. */
static int is_hasty(const holdings *h, const struct monarch_peer_request *wanted) {
    uint64_t unit = monarch_unit_of(wanted->size, h->block_bytes);
    return (wanted->is_awaited || wanted->length <= unit) &&
           wanted->size / unit < MONARCH_FILL_UNITS;
}

static void demand_first(holdings *h, uint64_t id, const struct monarch_peer_request *wanted,
                         enum monarch_origin of) {
    if (wanted->length && is_hasty(h, wanted))
        demand(h, id, wanted->first / monarch_unit_of(wanted->size, h->block_bytes), of);
}

static void note_whole(holdings *h, struct open_copy *held) {
    held->is_whole = 1;
    held->sums = monarch_sums_hold(h->sums, MONARCH_WORD_COPY(held->word), held->blocks);
}

/* Opens the copy that the entry's word `word` identifies. The copy's file name is its number, which
 * is never reused, so no other copy can be opened by mistake. slot: the slot of the copy's fill; -1
 * if the copy is complete. */
static enum monarch_peer_status open_copy(holdings *h, const struct monarch_peer_request *wanted,
                                          uint64_t id, uint64_t word, int slot,
                                          struct monarch_peer_opened *out) {
    char name[MONARCH_COPY_NAME + 4];
    struct open_copy *held = malloc(sizeof *held);
    snprintf(name, sizeof name, "%0*llx", MONARCH_COPY_NAME,
             (unsigned long long)MONARCH_WORD_COPY(word));
    int fd = openat(h->copies[MONARCH_WORD_TIER(word)], name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (!held || fd < 0) {
        free(held);
        if (fd >= 0)
            close(fd);
        return MONARCH_PEER_UNKNOWN_FILE;
    }
    uint64_t size = wanted->size, blocks = (size + h->block_bytes - 1) / h->block_bytes;
    uint64_t sum = __atomic_load_n(&monarch_entries(h->catalog)[id].sum, __ATOMIC_RELAXED);
    *held = (struct open_copy){.id = id,
                               .word = word,
                               .size = size,
                               .blocks = blocks,
                               .block_bytes = h->block_bytes,
                               .sum = sum,
                               .fd = fd,
                               .slot = slot,
                               .is_hasty = is_hasty(h, wanted),
                               .is_doubted = wanted->is_doubted != 0};
    if (slot < 0)
        note_whole(h, held);
    *out = (struct monarch_peer_opened){held, fd, size, h->block_bytes};
    return MONARCH_PEER_OK;
}

/* Returns whether the request must wait until this node knows which files it keeps (enum
 * monarch_patience). */
static int waits(const holdings *h, const struct monarch_peer_request *wanted) {
    int patience = __atomic_load_n(&h->patience, __ATOMIC_ACQUIRE);
    return patience == MONARCH_EVERYBODY_WAITS ||
           (patience == MONARCH_WHO_HAS_TIME_WAITS && !wanted->is_awaited);
}

/* Returns the answer to a request for a file that this node does not fill for the peer. */
static enum monarch_peer_status not_kept(const holdings *h,
                                         const struct monarch_peer_request *wanted) {
    return waits(h, wanted) ? MONARCH_PEER_LATER : MONARCH_PEER_UNKNOWN_FILE;
}

/* Makes this node keep the file, and records this for the daemon. Call this if a peer requests the
 * file and considers this node its owner. Returns whether this node now keeps the file. Returns 0
 * if another node keeps it because this node had no room, or if MONARCH_MOVED files are already
 * recorded. */
static int begin_to_keep(holdings *h, uint64_t id) {
    pthread_mutex_lock(&h->checking);
    unsigned home = monarch_home_here(h, id);
    if (home == MONARCH_KEPT_ELSEWHERE && h->moved_count < MONARCH_MOVED &&
        id < MONARCH_MAX_FILES) {
        h->moved_here[h->moved_count++] = id;
        __atomic_store_n(&h->home[id], home = MONARCH_KEPT_HERE, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&h->checking);
    return home == MONARCH_KEPT_HERE;
}

/* Returns whether this node keeps the file, and so fills it for this request. */
static int keeps(holdings *h, uint64_t id, const struct monarch_peer_request *wanted) {
    return monarch_home_here(h, id) == MONARCH_KEPT_HERE ||
           (wanted->is_owner && !waits(h, wanted) && begin_to_keep(h, id));
}

/* Asks the daemon to fill a file that has no copy and no fill, if this node keeps the file. */
static enum monarch_peer_status begin_filling(holdings *h, uint64_t id,
                                              const struct monarch_peer_request *wanted) {
    if (!keeps(h, id, wanted))
        return not_kept(h, wanted);
    want(h, id);
    demand_first(h, id, wanted, MONARCH_FROM_SOURCE);
    return MONARCH_PEER_LATER;
}

/* Returns whether the entry describes the requested version of the file. Sets *word to the entry's
 * word, which is read together with the compared attributes. These change only while the entry has
 * no copy. So if the word contains a copy's number, this copy has the requested version. */
static int is_meant(const holdings *h, const struct monarch_entry *e,
                    const struct monarch_peer_request *wanted, uint64_t *word) {
    for (int i = 0; i < LOOKS; i++) {
        uint32_t version = __atomic_load_n(&e->version, __ATOMIC_ACQUIRE);
        struct monarch_entry seen = {.mtime_ns = __atomic_load_n(&e->mtime_ns, __ATOMIC_ACQUIRE),
                                     .ctime_ns = __atomic_load_n(&e->ctime_ns, __ATOMIC_ACQUIRE)};
        uint64_t size = __atomic_load_n(&e->size, __ATOMIC_ACQUIRE);
        uint64_t ino = __atomic_load_n(&e->ino, __ATOMIC_ACQUIRE);
        *word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
        if (version % 2 == 0 && __atomic_load_n(&e->version, __ATOMIC_ACQUIRE) == version)
            return size == wanted->size && monarch_times_of(&seen) == wanted->mtime_ns &&
                   !monarch_is_changed(h->clients, h->device[e->source], ino);
    }
    return 0;
}

static enum monarch_peer_status open_entry(holdings *h, uint64_t id,
                                           const struct monarch_peer_request *wanted,
                                           struct monarch_peer_opened *out) {
    const struct monarch_entry *e = &monarch_entries(h->catalog)[id];
    if (e->kind != MONARCH_FILE)
        return MONARCH_PEER_UNKNOWN_FILE;
    unsigned home = monarch_home_here(h, id);
    uint64_t word;
    if (!is_meant(h, e, wanted, &word))
        return MONARCH_PEER_CHANGED;
    if (MONARCH_WORD_STATE(word) == MONARCH_PRESENT)
        return open_copy(h, wanted, id, word, -1, out);
    /* `home` may still change. Until this node knows which files it keeps, `home` may come from the
     * file's hash alone. An access plan may then replace it. */
    if (!wanted->is_awaited && waits(h, wanted))
        return MONARCH_PEER_LATER;
    if (home >= MONARCH_MOVED_TO)
        return MONARCH_PEER_MOVED + (home - MONARCH_MOVED_TO);
    switch (MONARCH_WORD_STATE(word)) {
    case MONARCH_ABSENT:
    case MONARCH_WANTED:
        return begin_filling(h, id, wanted);
    case MONARCH_FILLING: {
        /* This node is already filling the file. Do not begin to keep it now: the fill may be
         * waiting for the very node that has sent this request. */
        if (home != MONARCH_KEPT_HERE)
            return not_kept(h, wanted);
        int slot = monarch_fill_slot(h->fills, word);
        if (slot >= 0)
            return open_copy(h, wanted, id, word, slot, out);
        /* If the fill has just ended, the entry's word had changed before the slot was freed.
         * Nothing would then wake this request later, so start again with the new word. */
        if (__atomic_load_n(&e->word, __ATOMIC_SEQ_CST) != word)
            return open_entry(h, id, wanted, out);
        demand_first(h, id, wanted, MONARCH_ORIGINS);
        return MONARCH_PEER_LATER;
    }
    default:
        return MONARCH_WORD_REASON(word) == MONARCH_NO_ROOM && home == MONARCH_KEPT_ELSEWHERE
                   ? begin_filling(h, id, wanted)
                   : MONARCH_PEER_UNKNOWN_FILE;
    }
}

enum monarch_peer_status monarch_open_copy(void *arg, const struct monarch_peer_request *wanted,
                                           struct monarch_peer_opened *out) {
    holdings *h = arg;
    enum monarch_peer_status status = not_kept(h, wanted);
    pthread_rwlock_rdlock(&h->lock);
    if (h->catalog && wanted->source < MONARCH_MAX_SOURCES) {
        int64_t id = monarch_find_hash(h->catalog, wanted->source, wanted->path_hash);
        if (id >= 0)
            status = open_entry(h, (uint64_t)id, wanted, out);
    }
    pthread_rwlock_unlock(&h->lock);
    return status;
}

int monarch_has_word(struct monarch_holdings *h, uint64_t id, uint64_t word) {
    pthread_rwlock_rdlock(&h->lock);
    const struct monarch_entry *e = h->catalog ? &monarch_entries(h->catalog)[id] : NULL;
    int has_it = e && __atomic_load_n(&e->word, __ATOMIC_ACQUIRE) == word;
    pthread_rwlock_unlock(&h->lock);
    return has_it;
}

/* Like monarch_copy_available, for a fill that has ended. Its slot may already belong to another
 * fill, but the entry's word shows how this fill ended. */
static uint64_t available_when_over(holdings *h, struct open_copy *held) {
    uint64_t present = monarch_word(MONARCH_PRESENT, 0, MONARCH_WORD_TIER(held->word),
                                    MONARCH_WORD_COPY(held->word));
    int is_there = monarch_has_word(h, held->id, present);
    if (is_there)
        note_whole(h, held);
    return is_there ? held->size : MONARCH_PEER_NEVER;
}

/* Implements `available` of struct monarch_peer_files. The last block is not available until the
 * fill has found the file unchanged at the source. Before that, the bytes may belong to different
 * versions of the file, and the peer cannot check this itself. */
uint64_t monarch_copy_available(void *arg, void *file, uint64_t at) {
    holdings *h = arg;
    struct open_copy *held = file;
    if (held->is_whole)
        return held->size;
    const struct monarch_fill *f = &h->fills->fill[held->slot];
    uint64_t unit_bytes = __atomic_load_n(&f->unit_bytes, __ATOMIC_ACQUIRE), done = at;
    uint64_t failed = __atomic_load_n(&f->failed, __ATOMIC_ACQUIRE);
    uint64_t whole = __atomic_load_n(&f->whole, __ATOMIC_ACQUIRE);
    uint64_t stop = (held->blocks - 1) * held->block_bytes;
    /* unit_bytes is 0 if the file has more units than the bitmap has bits. Nothing is then sent
     * before the copy is complete. */
    for (uint64_t u = unit_bytes ? at / unit_bytes : 0; unit_bytes && done < held->size; u++) {
        if (!monarch_unit_is_done(f, u))
            break;
        done = (u + 1) * unit_bytes;
    }
    if (__atomic_load_n(&h->fills->word[held->slot], __ATOMIC_ACQUIRE) != held->word)
        return available_when_over(h, held);
    if (failed)
        return MONARCH_PEER_NEVER;
    if (whole) {
        note_whole(h, held);
        return held->size;
    }
    uint64_t end = done < stop ? done : stop > at ? stop : at;
    if (end == at && held->is_hasty && unit_bytes && done < held->size)
        demand(h, held->id, done / unit_bytes, MONARCH_ORIGINS);
    return end;
}

/* Returns whether a peer should repeat a request that has reached its time limit. Returns 1 until
 * this node knows which files it keeps. Afterwards, returns 1 only if a source has returned data
 * within STUCK_NS. */
int monarch_copy_is_coming(void *arg) {
    const holdings *h = arg;
    if (__atomic_load_n(&h->patience, __ATOMIC_ACQUIRE) != MONARCH_NOBODY_WAITS)
        return 1;
    uint64_t last = __atomic_load_n(&h->fills->source_ns, __ATOMIC_RELAXED);
    return last && monarch_now_ns() - last < STUCK_NS;
}

void monarch_close_copy(void *arg, void *file) {
    const holdings *h = arg;
    struct open_copy *held = file;
    monarch_sums_release(h->sums, held->sums);
    close(held->fd);
    free(held);
}
