/* Where the bytes of a fill come from: a peer that holds the file, and when there is none or it
 * fails, the source. */
#define _GNU_SOURCE
#include <unistd.h>

#include "engine.h"

/* A peer that lives may have to wait for the source itself, and says so (TIMEOUT) after 0.7 s. A
 * reader is not kept waiting for more than two such answers; what nobody waits for can wait for
 * some more, so that the source is not asked twice for the same bytes. */
#define ASKED_TRIES 2
#define TRIES 8
/* A reader has waited for the file within this time [ns]. */
#define ASKED_NS 2000000000ULL

static void note_sum(void *sum, uint64_t which, uint64_t first, uint64_t bytes, uint64_t value) {
    (void)which, (void)first, (void)bytes;
    *(uint64_t *)sum = value;
}

static int is_awaited(const struct fill *f) {
    uint64_t asked = __atomic_load_n(&f->asked_ns, __ATOMIC_RELAXED);
    return asked && monarch_now_ns() - asked < ASKED_NS;
}

int monarch_fetch(struct monarch_engine *e, struct fill *f, uint64_t at, uint64_t n,
                  uint64_t *sum) {
    const struct monarch_entry *entry = &f->job->entry;
    if (!__atomic_load_n(&f->is_by_peer, __ATOMIC_ACQUIRE))
        return 0;
    struct monarch_peer *peer = __atomic_load_n(&e->peers[f->job->peer], __ATOMIC_ACQUIRE);
    struct monarch_peer_get get = {.path_hash = entry->hash,
                                   .size = entry->size,
                                   .mtime_ns = entry->mtime_ns,
                                   .source = entry->source,
                                   .first = at,
                                   .length = n,
                                   .to = f->to,
                                   .at = at,
                                   .status = MONARCH_PEER_TIMEOUT};
    for (int tries = 0; peer && get.status == MONARCH_PEER_TIMEOUT; tries++) {
        if (tries >= (is_awaited(f) ? ASKED_TRIES : TRIES) ||
            __atomic_load_n(&e->stopping, __ATOMIC_RELAXED) ||
            __atomic_load_n(&f->failed, __ATOMIC_ACQUIRE))
            break;
        /* A connection that broke is no reason to ask this peer once more. */
        if (monarch_peer_ask(peer, &get, 1, note_sum, sum) != 0)
            break;
    }
    if (get.status == MONARCH_PEER_OK) {
        __atomic_fetch_add(&e->peer_bytes, n, __ATOMIC_RELAXED);
        return 1;
    }
    __atomic_store_n(&f->is_by_peer, 0, __ATOMIC_RELEASE);
    return 0;
}

int monarch_source_of(struct monarch_engine *e, struct fill *f) {
    int there = __atomic_load_n(&f->from, __ATOMIC_ACQUIRE);
    if (there >= 0)
        return there;
    int fd = monarch_open_source(e, f->job);
    /* Several threads may find at once that the peer is gone. */
    if (fd >= 0 &&
        !__atomic_compare_exchange_n(&f->from, &there, fd, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        close(fd);
        return there;
    }
    return fd;
}
