#define _GNU_SOURCE
#include "metadata.h"

#include <string.h>

#include "calls.h"
#include "sys.h"

#define NAME_MAX_BYTES 255 /* a longer component is another error than a missing one */

static int is_changed(const struct session *s, const struct monarch_entry *e) {
    return monarch_is_changed(s->clients, s->control->source[e->source].dev, e->ino);
}

/* What was compared with the source is told for a bounded time. */
int monarch_is_fresh(struct session *s) {
    uint64_t at = __atomic_load_n(&s->control->compared_ns, __ATOMIC_ACQUIRE);
    if (at && sys_now_ns() - at < s->control->revalidate_ns)
        return 1;
    if (at && s->control->revalidate_ns && !__atomic_load_n(&s->clients->stale, __ATOMIC_RELAXED)) {
        __atomic_store_n(&s->clients->stale, 1, __ATOMIC_RELAXED);
        monarch_ring(s);
    }
    return 0;
}

/* A damaged one would lead anywhere. */
static int is_within(const struct monarch_catalog *c, uint64_t listing) {
    return monarch_listing_first(listing) + monarch_listing_length(listing) <= c->capacity;
}

uint64_t monarch_listing_of(struct session *s, const struct monarch_catalog *c,
                            const struct monarch_entry *e) {
    uint64_t word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
    uint64_t listing = e->kind == MONARCH_DIR && MONARCH_WORD_STATE(word) != MONARCH_BYPASS
                           ? __atomic_load_n(&e->copy_ino, __ATOMIC_ACQUIRE)
                           : 0;
    return listing && is_within(c, listing) && !is_changed(s, e) && monarch_is_fresh(s) ? listing
                                                                                        : 0;
}

/* A file's attributes are what was scanned, or what its copy was made of, for as long as nobody
 * says that it changed. */
static int can_be_told(struct session *s, const struct monarch_catalog *c,
                       const struct monarch_entry *e) {
    uint64_t word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
    if (e->kind == MONARCH_DIR)
        return monarch_listing_of(s, c, e) != 0;
    if (e->kind == MONARCH_OTHER || is_changed(s, e))
        return 0;
    /* Before the scan has ended there is nothing to be compared with: these were looked at just
     * now. */
    if (__atomic_load_n(&s->control->compared_ns, __ATOMIC_ACQUIRE) && !monarch_is_fresh(s))
        return 0;
    unsigned reason = MONARCH_WORD_STATE(word) == MONARCH_BYPASS ? word >> 4 & 15 : 0;
    return reason != MONARCH_CHANGED && reason != MONARCH_UNSUPPORTED && reason != MONARCH_FAILED;
}

/* The path leads to a place that the catalog does not know: is the deepest directory on the way to
 * it that it knows one whose names are all known? */
__attribute__((noinline)) static int is_missing(struct session *s, const struct monarch_catalog *c,
                                                int dir, const char *path, int follow) {
    struct monarch_place place;
    monarch_locate_place(s, c, dir, path, follow, &place);
    /* Where names differ by more than their letters, a listing does not say what is missing. */
    if (place.entry != MONARCH_UNKNOWN || !s->control->source[place.source].filesystem.names_exact)
        return 0;
    size_t n = place.path_len, end = n;
    int64_t above;
    do {
        end = n;
        while (n && place.path[n - 1] != '/')
            n--;
        if (end - n > NAME_MAX_BYTES)
            return 0;
        n -= n > 0;
        above = monarch_find(c, (unsigned)place.source, place.path, n);
    } while (above < 0 && n);
    /* Some file systems have directories that they do not list (.snapshot, .zfs, .lustre). */
    if (place.path[n + (n > 0)] == '.')
        return 0;
    if (above < 0)
        return 0;
    /* Whether names in it may be looked up at all is seen by those that were. */
    const struct monarch_entry *d = &monarch_entries(c)[above];
    uint64_t listing = monarch_listing_of(s, c, d);
    return listing && (monarch_listing_length(listing) || (d->mode & 0111) == 0111);
}

enum monarch_answer monarch_know_near(int dir, const char *path, int follow,
                                      struct monarch_known *k) {
    struct session *s = session_for_reading();
    const struct monarch_catalog *c;
    if (!s || !s->control->metadata_cached)
        return MONARCH_ASK;
    int64_t id = monarch_locate(s, &c, dir, path, follow, 0);
    /* Another user may not see what ours may. */
    if (id == MONARCH_OUTSIDE || s->control->owner != (uint32_t)sys6(SYS_geteuid, 0, 0, 0, 0, 0, 0))
        return MONARCH_ASK;
    monarch_tick(s);
    if (monarch_is_off(s))
        return MONARCH_ASK;
    k->session = s;
    k->catalog = c;
    if (id >= 0) {
        k->entry = &monarch_entries(c)[id];
        k->version = __atomic_load_n(&k->entry->version, __ATOMIC_ACQUIRE);
        if ((k->version & 1) || !can_be_told(s, c, k->entry))
            return MONARCH_ASK;
    } else if (!is_missing(s, c, dir, path, follow)) {
        return MONARCH_ASK;
    }
    __atomic_fetch_add(&monarch_my_stats(s)->metadata_hits, 1, __ATOMIC_RELAXED);
    return id >= 0 ? MONARCH_THERE : MONARCH_MISSING;
}

int monarch_is_same_version(const struct monarch_known *k) {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&k->entry->version, __ATOMIC_RELAXED) == k->version;
}
