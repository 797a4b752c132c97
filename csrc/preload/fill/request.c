#include "preload/fill/request.h"

#include <string.h>

#include "preload/process/attributes.h"
#include "preload/process/proc.h"
#include "preload/session/session.h"
#include "shared/path.h"

/* With the option `fill_after`, a file is filled only after a program has requested a certain
 * fraction of the file. Each slot counts how many KiB of one file this process has requested:
 * entry << 32 | KiB. If two files share a slot, a read of one resets the count of the other. */
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

int monarch_request_fill(struct session *s, const struct monarch_entry *e, uint64_t id,
                         uint64_t n) {
    if (!s->control->fill_on_open || id >= MONARCH_MAX_FILES || !is_enough(s, e, id, n))
        return 0;
    if (monarch_set_bit(&s->clients->wanted, id))
        monarch_ring(s);
    return 1;
}

/* Sends the path that the kernel reports for `fd`, in which links and dots are resolved. The
 * daemon checks each path at the source. An open file has a valid path, so the check does not
 * burden the source in vain. Must not be inlined, because the buffer takes much of the stack, and
 * few opens need it. */
__attribute__((noinline)) void monarch_tell_unknown(struct session *s, int fd, int is_part) {
    char path[MONARCH_PATH_MAX];
    const char *rel;
    if (!monarch_may_hint_scan(s))
        return;
    size_t n = monarch_name_of(fd, path) ? strlen(path) : 0;
    int source = n ? monarch_prefix(s->control, path, n, &rel) : -1;
    if (source >= 0)
        monarch_hint_scan(s, (unsigned)source, rel, n - (size_t)(rel - path), is_part);
}
