#include "preload/fill/request.h"

#include <string.h>

#include "preload/descriptors/locked_files.h"
#include "preload/fill/demand.h"
#include "preload/lookup/where.h"
#include "preload/process/attributes.h"
#include "preload/process/proc.h"
#include "preload/session/session.h"
#include "shared/path.h"
#include "shared/sys.h"

/* Counts for `fill_after`, which delays the fill of a file until a program has asked for a certain
 * share of it. Each slot counts how many KiB of one file this process has asked for: entry << 32 |
 * KiB. If two files share a slot, a read of one resets the count of the other. */
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

/* Tells the daemon of a file that the catalog does not know. The daemon gets the path that the
 * kernel reports, in which links and dots are resolved. Call this only after the file was opened:
 * the daemon asks the source about each path that it gets, which would be wasted on a path that
 * leads to no file. This is a separate function, because its buffer takes much of the stack, and
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

/* --- files that a program's own reads fill ---------------------------------------------------- */

/* If the kernel does not keep the pages of a source, one in LOOKS of its files is handled as if the
 * kernel kept them. */
#define LOOKS 128

/* Without pages of the file in the page cache, a program's reads cannot serve as the fill: the
 * daemon would have to read the whole file again. One file in LOOKS is handed over all the same,
 * which shows whether the kernel keeps pages again. */
int monarch_keeps_pages(const struct session *s, uint32_t sources, uint64_t id) {
    return !(__atomic_load_n(&s->control->pageless_sources, __ATOMIC_RELAXED) & sources) ||
           id % LOOKS == 0;
}

int monarch_may_read_direct(const struct session *s, const struct monarch_entry *e, uint64_t id) {
    return e->size && e->size <= s->control->handed_bytes && id < MONARCH_MAX_FILES &&
           (!s->control->shares || e->flags & MONARCH_OWN) && !monarch_is_fast(s, e) &&
           monarch_keeps_pages(s, 1U << e->source, id) &&
           !monarch_has_locks(s->control->source[e->source].dev, e->ino);
}

int monarch_is_read_direct(struct session *s, const struct monarch_entry *e, uint64_t id,
                           uint64_t word) {
    if (!monarch_may_read_direct(s, e, id))
        return 0;
    if (MONARCH_WORD_STATE(word) == MONARCH_FILLING)
        return !monarch_is_under_way(s, word);
    if (MONARCH_WORD_STATE(word) == MONARCH_WANTED)
        return 1;
    return MONARCH_WORD_STATE(word) == MONARCH_ABSENT &&
           !monarch_bit_is_set(s->clients->wanted.word, id);
}

/* --- claims ----------------------------------------------------------------------------------- */

int monarch_is_on_its_way(uint64_t claim, uint64_t now_ns) {
    return claim & MONARCH_CLAIM_HANDED && monarch_claim_holds(claim, now_ns);
}

void monarch_claim_file(struct session *s, uint64_t id) {
    uint64_t *at = monarch_claim_at(s->clients, id), now = monarch_now_ns();
    uint64_t seen = __atomic_load_n(at, __ATOMIC_RELAXED);
    if (!monarch_is_on_its_way(seen, now))
        __atomic_compare_exchange_n(at, &seen, monarch_claim_of(id, 0, now), 0, __ATOMIC_SEQ_CST,
                                    __ATOMIC_RELAXED);
}

uint64_t monarch_begin_claim(struct session *s, uint64_t id) {
    uint64_t *at = monarch_claim_at(s->clients, id), now = monarch_now_ns();
    uint64_t seen = __atomic_load_n(at, __ATOMIC_SEQ_CST);
    uint64_t claim = monarch_claim_of(id, MONARCH_CLAIM_HANDED, now);
    while (!monarch_is_on_its_way(seen, now))
        if (__atomic_compare_exchange_n(at, &seen, claim, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            return claim;
    return 0;
}

void monarch_cancel_claim(struct session *s, uint64_t id, uint64_t claim) {
    uint64_t *at = monarch_claim_at(s->clients, id), seen = claim;
    while ((seen & ~MONARCH_CLAIM_RECALLED) == claim &&
           !__atomic_compare_exchange_n(at, &seen, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
}

void monarch_give_up_claim(struct session *s, uint64_t id) {
    uint64_t claim = __atomic_load_n(monarch_claim_at(s->clients, id), __ATOMIC_RELAXED);
    if (monarch_claim_names(claim, id) && !(claim & MONARCH_CLAIM_HANDED))
        monarch_cancel_claim(s, id, claim);
}

void monarch_fill_instead(struct session *s, const struct monarch_entry *e, uint64_t id) {
    monarch_give_up_claim(s, id);
    monarch_request_fill(s, e, id, 0);
}
