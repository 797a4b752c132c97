/* Attaches the process to a daemon's session when the library is loaded.
 *
 * A session consists of the memory segments that one daemon shares with programs. If the daemon has
 * ended and another daemon has started, the process attaches to the new daemon's session. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/sysmacros.h>

#include "preload/autostart/autostart.h"
#include "preload/descriptors/track.h"
#include "preload/process/calls.h"
#include "preload/process/log.h"
#include "preload/process/proc.h"
#include "preload/session/copies.h"
#include "preload/session/rights.h"
#include "preload/session/roots.h"
#include "preload/session/segments.h"
#include "preload/session/session.h"
#include "preload/session/tell.h"
#include "shared/sys.h"

#define NODE_BYTES 4096 /* size of the memory for a struct session; `first` is static */
#define NUMBERS 32

static struct session first;
static uint64_t last_tick; /* time at which monarch_tick last made its checks [s] */
static uint32_t lacks_room;

int monarch_lacks_room(void) { return (int)__atomic_load_n(&lacks_room, __ATOMIC_RELAXED); }

/* --- attaching ------------------------------------------------------------------------------ */

/* Fills in the new session `s`. No other thread can see `s` yet. Maps the segment `clients`, and
 * returns 0 if it cannot be used. control: the mapped segment `control`, which becomes part of the
 * session unless the result is 0. */
static int map_into(struct session *s, const struct monarch_segment *control) {
    int reused = 0;
    struct monarch_clients *m = monarch_map_range(MONARCH_RANGE_CLIENTS, &reused);
    if (m && m->magic == MONARCH_MAGIC) {
        s->control = control->map;
        s->clients = m;
        s->dev = control->dev;
        s->ino = control->ino;
        s->reused = (uint32_t)reused;
        s->distrusts = (uint32_t)monarch_has_foreign_tier(s->control);
        monarch_log("attached to the daemon of", monarch_session_dir(), NULL);
        return 1;
    }
    if (m)
        monarch_discard_range(MONARCH_RANGE_CLIENTS, m, reused);
    return 0;
}

/* Maps the segments that are in the session's directory now. old: the session to which the process
 * is attached, or NULL. Returns `old` if the segments are still those of `old`. Returns NULL if
 * there are no segments, or if this process cannot use them. Otherwise returns a new session, which
 * no other thread can see yet. */
static struct session *attach(struct session *old) {
    struct monarch_segment control;
    struct session *s = NULL;
    int is_mapped = monarch_map_segment("control", &control);
    __atomic_store_n(&lacks_room, !is_mapped && control.size != 0, __ATOMIC_RELAXED);
    if (!is_mapped)
        return NULL;
    if (old && old->ino == control.ino && old->dev == control.dev) {
        sys_unmap(control.map, control.size);
        return old;
    }
    int is_usable = monarch_control_is_usable(control.map, control.size);
    if (is_usable)
        s = old ? sys_new_pages(NODE_BYTES) : &first;
    if (s && map_into(s, &control))
        return s;
    __atomic_store_n(&lacks_room, (uint32_t)is_usable, __ATOMIC_RELAXED);
    if (s && old)
        sys_unmap(s, NODE_BYTES);
    sys_unmap(control.map, control.size);
    return NULL;
}

static void detach(struct session *s) {
    monarch_discard_range(MONARCH_RANGE_CLIENTS, s->clients, (int)s->reused);
    sys_unmap(s->control, sizeof *s->control);
    sys_unmap(s, NODE_BYTES);
}

/* --- sessions whose daemon has ended ---------------------------------------------------------- */

static uint32_t searches;

struct search {
    struct session *newest;
    uint32_t number;
};

/* Stores a descriptor's attributes in *st. Does not wait for the server of a network file system,
 * which may hang. */
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

/* If `fd` refers to a copy, records that the copy's session is still needed: stores the number of
 * the current search in that session. data: the struct search. */
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

/* Call this after the session `newest` has replaced another session. Releases the sessions that are
 * older than the replaced session, and removes them from the chain of sessions (`before`). Keeps
 * each session of which the process still has a copy or a listing open. If two threads call this at
 * once, one of them may visit a session that the other has removed. That does no harm, because a
 * session is never freed. */
static void retire(struct session *newest) {
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

/* --- switches and rights ---------------------------------------------------------------------- */

static uint32_t looks; /* atomic: number of checks of switch files and rights so far */

static uint32_t begin_look(void) { return __atomic_add_fetch(&looks, 1, __ATOMIC_SEQ_CST) << 1; }

/* Stores the result of a check of switch files and rights in the session. Does nothing if a later
 * check has already stored its result, which is newer. look: the number of this check (begin_look).
 * off: 1 if the process must not use copies. */
static void end_look(struct session *s, uint32_t look, uint32_t off) {
    uint32_t seen = __atomic_load_n(&s->off, __ATOMIC_RELAXED);
    while ((int32_t)(look - (seen & ~1U)) > 0 &&
           !__atomic_compare_exchange_n(&s->off, &seen, look | off, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED))
        ;
}

static void look_at_switches(struct session *s, int is_gone) {
    struct stat st;
    uint32_t look = begin_look();
    uint32_t off = s->distrusts || is_gone || !monarch_rights_suffice(s);
    for (int i = 0; i < 2; i++) {
        const char *path = s->control->switch_file[i];
        off |= path[0] && sys_fstatat(AT_FDCWD, path, &st, 0) == 0;
    }
    end_look(s, look, off);
}

/* Attaches to the newest daemon's session in place of `old`. Returns the session that the process
 * then has, or NULL if there is no usable session. Several threads may call this at the same time.
 * Each of them maps the session. The first thread that stores its mapping in monarch_current wins,
 * and the others discard theirs. No lock is taken, because its holder might never release it: a
 * signal handler may interrupt the holder, or the holder may be a child of vfork that is killed. */
static struct session *attach_again(struct session *old) {
    struct session *fresh = attach(old);
    if (!fresh || fresh == old)
        return fresh;
    fresh->before = old;
    fresh->number = (old->number + 1) % NUMBERS;
    look_at_switches(fresh, 0);
    monarch_untrack_session(fresh->number);
    if (__atomic_compare_exchange_n(&monarch_current, &old, fresh, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE)) {
        retire(fresh);
        return fresh;
    }
    detach(fresh);
    /* Another thread was faster. The failed exchange has set `old` to the session that the other
     * thread has stored. */
    return old;
}

/* Attaches to newer sessions, one after the other, until it finds a session whose daemon serves.
 * Returns that session, or NULL if no daemon serves. */
static struct session *follow(struct session *s) {
    for (;;) {
        struct session *next = attach_again(s);
        if (!next || monarch_is_serving(next) || next == s)
            return next && monarch_is_serving(next) ? next : NULL;
        s = next;
    }
}

static uint64_t coarse_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int second_has_passed(void) {
    uint64_t now = coarse_ns() / 1000000000, last = __atomic_load_n(&last_tick, __ATOMIC_RELAXED);
    return now != last && __atomic_compare_exchange_n(&last_tick, &last, now, 0, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED);
}

void monarch_tick(struct session *s) {
    if (!second_has_passed())
        return;
    int is_gone = !monarch_is_linked(s);
    monarch_sources_may_differ(s);
    look_at_switches(s, is_gone);
    if (is_gone)
        follow(s);
    else
        monarch_autostart_watch(s);
}

void monarch_rights_may_differ(void) {
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    uint32_t look = begin_look();
    if (s && !monarch_rights_suffice(s))
        end_look(s, look, 1);
}

/* Returns whether the name `control` in the session's directory still leads to this session's
 * segment `control`. If not, another daemon has started, or the directory was removed. The name is
 * checked at most once per tick of the coarse clock. That is enough, because a new daemon needs
 * longer to start. */
static int is_linked_still(struct session *s) {
    uint64_t now = coarse_ns();
    if (__atomic_load_n(&s->linked_ns, __ATOMIC_RELAXED) == now)
        return 1;
    if (!monarch_is_linked(s))
        return 0;
    __atomic_store_n(&s->linked_ns, now, __ATOMIC_RELAXED);
    return 1;
}

/* Returns the session whose daemon must learn of a change that this process makes, or NULL if no
 * daemon serves. If a new daemon has started, first attaches to its session, and returns that
 * session. If there is no new daemon but the session's directory was removed, returns the old
 * session: its daemon may still serve other processes. */
struct session *monarch_session_for_change(void) {
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    int serves = monarch_is_serving(s);
    if (serves && is_linked_still(s))
        return s;
    struct session *now = follow(s);
    return now ? now : serves ? s : NULL;
}

struct session *monarch_session_slow(void) {
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    if (!monarch_is_serving(s) && (!second_has_passed() || !(s = follow(s))))
        return NULL;
    monarch_tick(s);
    return s->control->off || monarch_is_off(s) ? NULL : s;
}

/* Returns whether this process runs the command `monarch`, which starts and stops daemons itself.
 * The command is a script. For a script, PR_GET_NAME returns the name of the script, not of its
 * interpreter. */
static int is_our_command(void) {
    char name[16] = "";
    sys6(SYS_prctl, PR_GET_NAME, (long)name, 0, 0, 0, 0);
    return strcmp(name, "monarch") == 0;
}

__attribute__((constructor)) static void load(void) {
    monarch_real_init();
    const char *config = secure_getenv("MONARCH_CONFIG"), *off = secure_getenv("MONARCH_DISABLE");
    const char *sources = secure_getenv("MONARCH_SOURCE");
    /* A site's environment module may set MONARCH_SITE_CONFIG for all users. If only this variable
     * is set, the user has not requested a daemon. So the library then does not warn that no daemon
     * serves. */
    int is_meant = (config && *config) || (sources && *sources);
    int is_site = !config || !*config;
    if (is_site)
        config = secure_getenv("MONARCH_SITE_CONFIG");
    if (!config || !*config || (off && *off && strcmp(off, "0") != 0))
        return;
    int old_errno = errno;
    monarch_log_init();
    monarch_rank_init();
    if (!monarch_find_session_dir(config)) {
        /* the command `monarch` reports this error itself */
        if (!is_our_command())
            monarch_warn(is_site ? "MONARCH_SITE_CONFIG names a file that cannot be found:"
                                 : "MONARCH_CONFIG names a file that cannot be found:",
                         config, "Set it to the absolute path of a configuration file.");
    } else {
        struct session *s = attach(NULL);
        int starts = !is_our_command() && monarch_autostart_init(config, s);
        if (s)
            look_at_switches(s, 0);
        else if (monarch_lacks_room())
            monarch_warn("this process cannot map the segments of the daemon for", config,
                         "Raise the limits on its address space (ulimit -v) and on mappings "
                         "(vm.max_map_count).");
        else if (!starts && is_meant && !is_our_command() &&
                 /* if the user has stopped the daemon, no warning is needed */
                 !monarch_was_stopped())
            monarch_warn("no daemon serves", config,
                         "Start one with `monarch start`, or unload the library with "
                         "eval \"$(monarch env --unset)\".");
        __atomic_store_n(&monarch_current, s ? s : &monarch_waiting, __ATOMIC_RELEASE);
    }
    monarch_pass_warning_on();
    errno = old_errno;
}
