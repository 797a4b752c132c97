/* Reads what clients report to the daemon, and waits on the daemon's doorbell.
 *
 * For each file that a client requests, opens or has read, the client sets a bit in a bitmap. For
 * each file that a client changes, it marks the file in the changed filter, or appends a record to
 * the file `changes`. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "native.h"
#include "shared/doorbell.h"

/* Reads and clears the bits of one word, and stores in `ids` the numbers of the files whose bits
 * were set. The word's summary bit must be cleared before the word is read. A client that sets a
 * bit after the read then also sets the summary bit again, so the daemon misses no bit. */
static uint64_t take_word(struct monarch_bits *b, uint64_t word, uint64_t count, uint64_t *ids) {
    uint64_t n = 0;
    __atomic_fetch_and(&b->summary[word / 64], ~(1ULL << (word % 64)), __ATOMIC_SEQ_CST);
    uint64_t bits = __atomic_exchange_n(&b->word[word], 0, __ATOMIC_SEQ_CST);
    for (; bits; bits &= bits - 1) {
        uint64_t id = word * 64 + (uint64_t)__builtin_ctzll(bits);
        /* a client may have used a number from an earlier daemon's catalog, for which this catalog
         * has no entry */
        if (id < count)
            ids[n++] = id;
    }
    return n;
}

uint64_t monarch_take_bits(struct monarch_bits *b, uint64_t count, uint64_t *ids, uint64_t max) {
    uint64_t n = 0, files = count < MONARCH_MAX_FILES ? count : MONARCH_MAX_FILES;
    for (uint64_t i = 0; i < (files + 4095) / 4096; i++) {
        uint64_t above = __atomic_load_n(&b->summary[i], __ATOMIC_RELAXED);
        for (; above && n + 64 <= max; above &= above - 1)
            n += take_word(b, i * 64 + (uint64_t)__builtin_ctzll(above), count, ids + n);
    }
    return n;
}

void monarch_find_changed(const struct monarch_clients *m, const struct monarch_control *k,
                          const struct monarch_catalog *c, uint64_t n, const uint64_t *ids,
                          uint8_t *flags) {
    for (uint64_t i = 0; i < n; i++) {
        const struct monarch_entry *e = &monarch_entries(c)[ids[i]];
        flags[i] = (uint8_t)monarch_is_marked(m, k->source[e->source].dev, e->ino);
    }
}

static void mark_source(struct monarch_clients *m, const struct monarch_control *k,
                        const struct monarch_catalog *c, uint32_t source) {
    const struct monarch_entry *entries = monarch_entries(c);
    __atomic_fetch_add(&m->renames, 1, __ATOMIC_SEQ_CST);
    for (uint64_t i = 0; i < c->count; i++)
        if (entries[i].source == source)
            monarch_mark_changed(m, k->source[source].dev, entries[i].ino);
}

void monarch_take_changes(struct monarch_clients *m, const struct monarch_control *k,
                          const struct monarch_catalog *c, int fd, uint64_t *at) {
    struct monarch_change change;
    for (uint64_t told; (told = __atomic_load_n(&m->told, __ATOMIC_SEQ_CST));) {
        while (pread(fd, &change, sizeof change, (off_t)*at) == (ssize_t)sizeof change) {
            *at += sizeof change;
            monarch_mark_changed(m, change.dev, change.ino);
            for (uint32_t i = 0; change.is_tree && i < k->sources; i++)
                if (k->source[i].dev == change.dev)
                    mark_source(m, k, c, i);
        }
        for (uint32_t i = 0; told == MONARCH_CHANGE_UNKNOWN && i < k->sources; i++)
            mark_source(m, k, c, i);
        __atomic_compare_exchange_n(&m->told, &told, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
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
