/* Compares files and directories with the source, for commands that name them. Several threads
 * query the source, as in a scan. */
#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>

#include "native.h"
#include "shared/pace.h"

#define MAX_THREADS 64
/* For every A_THREAD entries, one more thread is started. */
#define A_THREAD 32

struct comparison {
    const struct monarch_catalog *catalog;
    const int32_t *roots;
    const uint64_t *ids;
    struct monarch_entry *fresh;
    uint8_t *found;
    uint64_t n, next /* next: atomic */, until_ns;
    struct monarch_pace pace;
};

static int is_time(const struct statx_timestamp *t, int64_t ns) {
    return monarch_time_ns(t->tv_sec, t->tv_nsec) == ns;
}

static int is_same(const struct monarch_entry *e, const struct statx *now) {
    if (now->stx_ino != e->ino || !is_time(&now->stx_mtime, e->mtime_ns) ||
        !is_time(&now->stx_ctime, e->ctime_ns))
        return 0;
    return e->kind == MONARCH_DIR ? S_ISDIR(now->stx_mode)
                                  : S_ISREG(now->stx_mode) && now->stx_size == e->size;
}

/* Compares one entry with the source. Asks the server even if the kernel has cached the attributes.
 * A user who names files suspects that the cached attributes are out of date. */
static enum monarch_compared compare(const struct comparison *x, const struct monarch_entry *e,
                                     struct monarch_entry *fresh) {
    struct statx now;
    char target[1];
    int root = x->roots[e->source];
    const char *path = monarch_pool(x->catalog, e->path);
    int flags = AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH | AT_STATX_FORCE_SYNC;
    if (statx(root, path, flags, STATX_BASIC_STATS, &now) != 0)
        return errno == ENOENT || errno == ENOTDIR ? MONARCH_GONE : MONARCH_SAME;
    if (is_same(e, &now))
        return MONARCH_SAME;
    if (monarch_stat_entry(root, e->source, path, fresh, target, sizeof target) != 0 ||
        fresh->kind != e->kind)
        return MONARCH_GONE;
    return MONARCH_REPLACED;
}

static void *compare_some(void *arg) {
    struct comparison *x = arg;
    while (__atomic_load_n(&x->next, __ATOMIC_RELAXED) < x->n &&
           monarch_keep_pace(&x->pace, x->until_ns)) {
        uint64_t i = __atomic_fetch_add(&x->next, 1, __ATOMIC_RELAXED);
        if (i < x->n)
            x->found[i] =
                (uint8_t)compare(x, &monarch_entries(x->catalog)[x->ids[i]], &x->fresh[i]);
    }
    return NULL;
}

uint64_t monarch_compare(const struct monarch_catalog *c, const int32_t *roots, uint64_t n,
                         const uint64_t *ids, int threads, uint64_t ops_per_s, uint64_t limit_ns,
                         uint8_t *found, struct monarch_entry *fresh) {
    struct comparison x = {c, roots, ids, fresh, found, n, 0, monarch_now_ns() + limit_ns, {0, 0}};
    pthread_t thread[MAX_THREADS];
    int started = 0, most = threads < MAX_THREADS ? threads : MAX_THREADS;
    monarch_pace_init(&x.pace, ops_per_s);
    while (started + 1 < most && (uint64_t)started < n / A_THREAD &&
           pthread_create(&thread[started], NULL, compare_some, &x) == 0)
        started++;
    compare_some(&x);
    while (started)
        pthread_join(thread[--started], NULL);
    return x.next < n ? x.next : n;
}
