#include "preload/lookup/metadata.h"

#include <errno.h>
#include <sys/sysmacros.h>

#include "preload/session/session.h"
#include "shared/sys.h"

/* A look is a call of statx that checks at the source whether a directory has changed. If the
 * directory has not changed, the look is valid for a second (LOOK_HOLDS, in ticks of 2^TICK_BITS
 * ns). A valid look is stored in a 64-bit word: (number of the directory's entry + 1) << TIME_BITS
 * | time of the look, in ticks. */
#define TICK_BITS 20
#define TIME_BITS 39
#define LOOK_HOLDS (1000000000ULL >> TICK_BITS)

/* Before the daemon's first comparison, and if `revalidate_ns` is 0, returns 0 and asks for no
 * comparison. */
int monarch_is_fresh(struct session *s) {
    uint64_t at = __atomic_load_n(&s->control->compared_ns, __ATOMIC_ACQUIRE);
    if (at && monarch_now_ns() - at < s->control->revalidate_ns)
        return 1;
    if (at && s->control->revalidate_ns && !__atomic_load_n(&s->clients->stale, __ATOMIC_RELAXED)) {
        __atomic_store_n(&s->clients->stale, 1, __ATOMIC_RELAXED);
        monarch_ring(s);
    }
    return 0;
}

/* --- looks: checks at the source whether a directory has changed ------------------------------ */

static uint64_t *look_at(const struct monarch_known *k, uint64_t id) {
    return &k->session->clients->look[monarch_mix(id) % MONARCH_LOOKS];
}

static int look_holds(const struct monarch_known *k, uint64_t now_ns) {
    uint64_t id = (uint64_t)(k->entry - monarch_entries(k->catalog));
    uint64_t look = __atomic_load_n(look_at(k, id), __ATOMIC_ACQUIRE);
    uint64_t at = look & ((1ULL << TIME_BITS) - 1);
    return look >> TIME_BITS == id + 1 && (now_ns >> TICK_BITS) - at < LOOK_HOLDS;
}

static void keep_look(const struct monarch_known *k, uint64_t now_ns) {
    uint64_t id = (uint64_t)(k->entry - monarch_entries(k->catalog));
    __atomic_store_n(look_at(k, id), (id + 1) << TIME_BITS | now_ns >> TICK_BITS, __ATOMIC_RELEASE);
}

static int is_time(const struct statx_timestamp *t, int64_t ns) {
    return monarch_time_ns(t->tv_sec, t->tv_nsec) == ns;
}

/* Returns whether the directory is unchanged since the daemon listed it. Asks the source's server
 * (AT_STATX_FORCE_SYNC), because the kernel may have cached the attributes a minute ago. Without
 * the library, the kernel would ask the server too: an NFS client at each open of a directory,
 * FUSE at each listing. Must not be inlined, so that the large `struct statx` is on the stack only
 * while it is needed. */
__attribute__((noinline)) static int is_as_listed(const struct monarch_known *k, int dir,
                                                  const char *path) {
    struct statx now;
    const struct monarch_entry *e = k->entry;
    uint64_t dev = k->session->control->source[e->source].dev;
    long r = sys6(SYS_statx, dir, (long)path, AT_STATX_FORCE_SYNC,
                  STATX_TYPE | STATX_INO | STATX_MTIME | STATX_CTIME, (long)&now, 0);
    if (r == 0 && S_ISDIR(now.stx_mode) && now.stx_ino == e->ino &&
        makedev(now.stx_dev_major, now.stx_dev_minor) == dev &&
        is_time(&now.stx_mtime, e->mtime_ns) && is_time(&now.stx_ctime, e->ctime_ns))
        return 1;
    /* The directory has changed or is gone, so it is marked as changed. From then on, its listings
     * come from the source, and this function is not called for it. An error other than ENOENT and
     * ENOTDIR may be temporary, so the directory is not marked. */
    if (r == 0 || r == -ENOENT || r == -ENOTDIR)
        monarch_mark_changed(k->session->clients, dev, e->ino);
    return 0;
}

/* --- listings --------------------------------------------------------------------------------- */

/* Returns whether the listing lies within the catalog's memory. This check protects the process
 * from a damaged catalog. */
static int is_within(const struct monarch_catalog *c, uint64_t listing) {
    return monarch_listing_first(listing) + monarch_listing_length(listing) <= c->capacity;
}

/* Returns the listing from the last scan of the directory. Returns 0 if there is no listing, or if
 * the directory is known to have changed. */
static uint64_t last_listing(const struct monarch_known *k) {
    const struct monarch_entry *e = k->entry;
    uint64_t word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
    uint64_t listing = e->kind == MONARCH_DIR && MONARCH_WORD_STATE(word) != MONARCH_BYPASS
                           ? __atomic_load_n(&e->copy_ino, __ATOMIC_ACQUIRE)
                           : 0;
    return listing && is_within(k->catalog, listing) && !monarch_entry_is_changed(k->session, e)
               ? listing
               : 0;
}

uint64_t monarch_listing_of(const struct monarch_known *k) {
    uint64_t listing = last_listing(k);
    return listing && look_holds(k, monarch_now_ns()) ? listing : 0;
}

uint64_t monarch_look_and_list(const struct monarch_known *k, int dir, const char *path) {
    uint64_t listing = last_listing(k), now_ns = monarch_now_ns();
    if (!listing || look_holds(k, now_ns))
        return listing;
    /* If the daemon has already stored the directory's new times in the entry, is_as_listed misses
     * the change. But before the daemon stores new times, it marks the directory as changed. So
     * the second call of last_listing notices the change. */
    if (!is_as_listed(k, dir, path) || !monarch_is_same_version(k) || last_listing(k) != listing)
        return 0;
    keep_look(k, now_ns);
    return listing;
}

/* --- attributes ------------------------------------------------------------------------------- */

/* Returns whether the catalog can answer a call for the attributes. The catalog has the attributes
 * that the scan or the fill has found. For a file, they are valid if no change is recorded and the
 * last comparison with the source is recent enough. */
static int can_tell(const struct monarch_known *k) {
    const struct monarch_entry *e = k->entry;
    uint64_t word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
    if (e->kind == MONARCH_DIR)
        return monarch_listing_of(k) != 0;
    if (e->kind == MONARCH_OTHER || monarch_entry_is_changed(k->session, e))
        return 0;
    /* Until the daemon has made its first comparison with the source, the attributes are recent
     * enough, because the scan has just read them. */
    const struct monarch_control *control = k->session->control;
    if ((!control->revalidate_ns || __atomic_load_n(&control->compared_ns, __ATOMIC_ACQUIRE)) &&
        !monarch_is_fresh(k->session))
        return 0;
    unsigned reason = MONARCH_WORD_STATE(word) == MONARCH_BYPASS ? word >> 4 & 15 : 0;
    return reason != MONARCH_CHANGED && reason != MONARCH_UNSUPPORTED && reason != MONARCH_FAILED;
}

int monarch_can_tell(const struct monarch_known *k) {
    if (!can_tell(k))
        return 0;
    monarch_count_told(k);
    return 1;
}

int monarch_know_near(int dir, const char *path, int follow, struct monarch_known *k) {
    struct session *s = session_for_reading();
    if (!s || !s->control->metadata_cached)
        return 0;
    int64_t id = monarch_locate(s, &k->catalog, dir, path, follow);
    /* If this process runs as another user than the daemon, it may have fewer rights than the
     * daemon. So the source must answer. */
    if (id < 0 || s->control->owner != (uint32_t)sys6(SYS_geteuid, 0, 0, 0, 0, 0, 0))
        return 0;
    monarch_tick(s);
    if (monarch_is_off(s))
        return 0;
    k->session = s;
    k->entry = &monarch_entries(k->catalog)[id];
    k->version = __atomic_load_n(&k->entry->version, __ATOMIC_ACQUIRE);
    return !(k->version & 1);
}

int monarch_is_same_version(const struct monarch_known *k) {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&k->entry->version, __ATOMIC_RELAXED) == k->version;
}
