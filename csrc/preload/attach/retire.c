#include "preload/attach/retire.h"

#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "preload/descriptors/track.h"
#include "preload/process/proc.h"
#include "preload/session/copies.h"
#include "preload/session/segments.h"
#include "shared/sys.h"

static uint32_t searches;

struct search {
    struct session *newest;
    uint32_t number;
};

/* Gets a descriptor's attributes without asking the file system's server, which may hang. */
static int attributes_of(int fd, struct stat *st) {
    struct statx x;
    const unsigned mask = STATX_BASIC_STATS;
    if (sys6(SYS_statx, fd, (long)"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, mask, (long)&x, 0) != 0)
        return sys_fstat(fd, st) == 0; /* before Linux 4.11 */
    st->st_dev = makedev(x.stx_dev_major, x.stx_dev_minor);
    st->st_ino = x.stx_ino;
    st->st_mode = x.stx_mode;
    st->st_nlink = x.stx_nlink;
    st->st_size = (off_t)x.stx_size;
    st->st_mtim.tv_sec = x.stx_mtime.tv_sec;
    st->st_mtim.tv_nsec = x.stx_mtime.tv_nsec;
    return 1;
}

/* If the descriptor is an open copy, notes that the copy's session is needed. */
static void note_need(int fd, void *data) {
    const struct search *search = data;
    const struct monarch_catalog *c;
    struct session *s = search->newest;
    struct stat st;
    if (!attributes_of(fd, &st) || !S_ISREG(st.st_mode) || !monarch_behind_copy(&s, &c, &st))
        return;
    uint32_t seen = __atomic_load_n(&s->needed, __ATOMIC_RELAXED);
    while (seen < search->number &&
           !__atomic_compare_exchange_n(&s->needed, &seen, search->number, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
        ;
}

/* Two threads may do this at once: an unlinked session stays unlinked, and is at worst met
 * again. */
void monarch_retire(struct session *newest) {
    struct session *last = newest->before, *s;
    struct search search = {newest, __atomic_add_fetch(&searches, 1, __ATOMIC_ACQ_REL)};
    if (!__atomic_load_n(&last->before, __ATOMIC_ACQUIRE) || !monarch_track_is_mine() ||
        !monarch_have_one_table() || !monarch_for_descriptors(note_need, &search))
        return;
    for (struct session **at = &last->before; (s = __atomic_load_n(at, __ATOMIC_ACQUIRE));) {
        if (!__atomic_load_n(&s->released, __ATOMIC_ACQUIRE) &&
            __atomic_load_n(&s->needed, __ATOMIC_ACQUIRE) < search.number &&
            !__atomic_load_n(&s->listings, __ATOMIC_ACQUIRE))
            monarch_release_session(s);
        if (__atomic_load_n(&s->released, __ATOMIC_ACQUIRE))
            __atomic_store_n(at, s->before, __ATOMIC_RELEASE);
        else
            at = &s->before;
    }
}
