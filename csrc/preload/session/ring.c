#include "preload/session/ring.h"

#include <string.h>

#include "shared/sys.h"

void monarch_ring(struct session *s) {
    __atomic_fetch_add(&s->clients->doorbell, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&s->clients->sleeping, __ATOMIC_SEQ_CST))
        sys_futex_wake(&s->clients->doorbell);
}

int monarch_may_hint_scan(const struct session *s) {
    const struct monarch_clients *m = s->clients;
    uint64_t n = __atomic_load_n(&m->scan_hints, __ATOMIC_RELAXED) % MONARCH_SCAN_HINTS;
    return !(__atomic_load_n(&m->scan_hint[n].ticket, __ATOMIC_RELAXED) & 3);
}

void monarch_hint_scan(struct session *s, unsigned source, const char *path, size_t len,
                       int is_part) {
    struct monarch_clients *m = s->clients;
    if (len >= MONARCH_SCAN_HINT_PATH)
        return;
    uint64_t n = __atomic_fetch_add(&m->scan_hints, 1, __ATOMIC_RELAXED);
    struct monarch_scan_hint *slot = &m->scan_hint[n % MONARCH_SCAN_HINTS];
    uint64_t seen = __atomic_load_n(&slot->ticket, __ATOMIC_ACQUIRE);
    if (seen & 3)
        return;               /* not emptied yet */
    uint64_t mine = seen + 5; /* the next number, being written */
    if (!__atomic_compare_exchange_n(&slot->ticket, &seen, mine, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return;
    slot->source = source;
    slot->path_len = (uint32_t)len;
    slot->is_part = (uint32_t)is_part;
    memcpy(slot->path, path, len);
    /* This fails if the daemon took us for dead and freed the slot. */
    if (__atomic_compare_exchange_n(&slot->ticket, &mine, mine + 1, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED))
        monarch_ring(s);
}
