#define _GNU_SOURCE
#include "session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "log.h"
#include "rank.h"
#include "sys.h"
#include "text.h"
#include "xxh3.h"

#define DIR_MAX 256
#define POOL 32 /* daemons that one process may see come and go */

struct session *monarch_current;

static struct session pool[POOL] SELDOM;
static uint32_t pool_used;
static char session_dir[DIR_MAX];
static uint64_t last_tick; /* [s] */
static __thread unsigned my_slot;
static uint32_t next_slot;
static uint32_t foreign; /* atomic: we are in a mount name space of our own making */

/* What `monarch_current` is while a configuration is named but no daemon has answered yet. */
static const struct monarch_control nobody = {.state = MONARCH_CLOSED};
static struct session waiting = {.control = &nobody};

/* --- attaching ------------------------------------------------------------------------------ */

static int find_session_dir(const char *config) {
    const char *shm = secure_getenv("MONARCH_SHM");
    char resolved[MONARCH_SOURCE_PATH * 4], *at = session_dir;
    if (!shm || strlen(shm) > DIR_MAX - 64)
        shm = "/dev/shm";
    if (strlen(config) >= sizeof resolved || !realpath(config, resolved))
        return 0;
    at = put(put(at, shm), "/monarch-");
    at = put_number(at, (uint64_t)sys6(SYS_geteuid, 0, 0, 0, 0, 0, 0), 10, 1);
    put_number(put(at, "/"), monarch_xxh3(resolved, strlen(resolved)), 16, 16);
    return 1;
}

/* These two apart, so that a first open, which may be on a small stack, needs room for the path or
 * for the attributes, not for both. */
__attribute__((noinline)) static int open_segment(const char *name, int writable) {
    char path[DIR_MAX + 48];
    put(put(put(path, session_dir), "/"), name);
    return sys_openat(AT_FDCWD, path,
                      (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

/* Its size, 0 for a file that is not ours alone: another user who could write to it could send our
 * reads anywhere. */
__attribute__((noinline)) static uint64_t size_of_ours(int fd) {
    struct stat st;
    return sys_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && !(st.st_mode & 077) &&
                   st.st_uid == (uid_t)sys6(SYS_geteuid, 0, 0, 0, 0, 0, 0) && st.st_size > 0
               ? (uint64_t)st.st_size
               : 0;
}

/* Maps a segment whole. */
static const void *map_segment(const char *name, int writable, uint64_t *size) {
    const void *map = NULL;
    int fd = open_segment(name, writable);
    if (fd < 0)
        return NULL;
    *size = size_of_ours(fd);
    if (*size)
        map = *size < MONARCH_HUGE_PAGE || writable
                  ? sys_map(fd, *size, PROT_READ | (writable ? PROT_WRITE : 0))
                  : sys_map_aligned(fd, *size, PROT_READ, MONARCH_HUGE_PAGE);
    sys_close(fd);
    return map;
}

static int paths_fit(const struct monarch_control *k) {
    if (k->sources > MONARCH_MAX_SOURCES || k->tiers > MONARCH_MAX_TIERS)
        return 0;
    for (uint32_t i = 0; i < k->sources; i++)
        if (k->source[i].path_len >= MONARCH_SOURCE_PATH ||
            k->source[i].alias_len >= MONARCH_SOURCE_PATH)
            return 0;
    for (uint32_t i = 0; i < k->tiers; i++)
        if (k->tier[i].path_len >= MONARCH_TIER_PATH)
            return 0;
    return 1;
}

static int control_is_usable(const struct monarch_control *k, uint64_t size) {
    if (size < sizeof *k || k->magic != MONARCH_MAGIC)
        return 0;
    if (k->version != MONARCH_VERSION) {
        monarch_warn("the daemon has another version than", "libmonarch.so",
                     "restart it with the monarch command of this installation");
        return 0;
    }
    return k->state == MONARCH_SERVING && paths_fit(k);
}

static struct session *attach(void) {
    uint64_t control_size = 0, clients_size = 0;
    const struct monarch_control *k = map_segment("control", 0, &control_size);
    if (!k)
        return NULL;
    if (control_is_usable(k, control_size)) {
        struct monarch_clients *m = (void *)map_segment("clients", 1, &clients_size);
        uint32_t i = POOL;
        if (m && clients_size >= sizeof *m && m->magic == MONARCH_MAGIC)
            i = __atomic_fetch_add(&pool_used, 1, __ATOMIC_RELAXED);
        if (i < POOL) {
            pool[i].clients = m;
            pool[i].control = k;
            monarch_log("daemon", session_dir, "attached");
            return &pool[i];
        }
        if (m)
            sys_unmap(m, clients_size);
    }
    sys_unmap(k, control_size);
    return NULL;
}

const struct monarch_fills *monarch_fills_of(struct session *s) {
    const struct monarch_fills *old = __atomic_load_n(&s->fills, __ATOMIC_ACQUIRE), *fresh;
    uint64_t size = 0;
    if (__builtin_expect(old != NULL, 1) || !(fresh = map_segment("fills", 0, &size)))
        return old;
    /* Found by name: a daemon that has taken this one's place has closed it before it made its own.
     */
    if (size >= sizeof *fresh && monarch_is_serving(s) &&
        __atomic_compare_exchange_n(&s->fills, &old, fresh, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return fresh;
    sys_unmap(fresh, size);
    return old;
}

unsigned monarch_session_number(const struct session *s) { return (unsigned)(s - pool); }
struct session *monarch_session_at(unsigned number) {
    return &pool[number];
}

static struct session *attach_again(struct session *old) {
    struct session *fresh = attach();
    if (!fresh)
        return NULL;
    fresh->before = old;
    if (__atomic_compare_exchange_n(&monarch_current, &old, fresh, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE))
        return fresh;
    return old; /* another thread was faster; ours stays mapped and unused */
}

static uint64_t seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec;
}

static int second_has_passed(void) {
    uint64_t now = seconds(), last = __atomic_load_n(&last_tick, __ATOMIC_RELAXED);
    return now != last && __atomic_compare_exchange_n(&last_tick, &last, now, 0, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED);
}

static void look_at_switches(struct session *s) {
    struct stat st;
    uint32_t off = 0;
    for (int i = 0; i < 2; i++) {
        const char *path = s->control->switch_file[i];
        off |= path[0] && sys_fstatat(AT_FDCWD, path, &st, 0) == 0;
    }
    __atomic_store_n(&s->off, off, __ATOMIC_RELAXED);
}

void monarch_tick(struct session *s) {
    if (second_has_passed())
        look_at_switches(s);
}

struct session *monarch_session_slow(int for_change) {
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    if (!monarch_is_serving(s)) {
        /* A change must not miss a daemon that has just started; a read can wait a second. */
        if (!for_change && !second_has_passed())
            return NULL;
        s = attach_again(s);
        if (!s || !monarch_is_serving(s))
            return NULL;
        look_at_switches(s);
    }
    if (for_change)
        return s;
    monarch_tick(s);
    return s->control->off || monarch_is_off(s) ? NULL : s;
}

/* --- the catalog ---------------------------------------------------------------------------- */

/* The offsets of a damaged header would lead anywhere. */
static int is_sound(const struct monarch_catalog *c, uint64_t size) {
    struct monarch_catalog right;
    if (size < sizeof *c || c->magic != MONARCH_MAGIC || c->capacity > MONARCH_MAX_ENTRIES ||
        c->pool_bytes > MONARCH_MAX_POOL || c->count > c->capacity)
        return 0;
    monarch_lay_out(&right, c->capacity, c->pool_bytes);
    return c->bytes == right.bytes && c->bytes <= size && c->slots == right.slots &&
           c->index_at == right.index_at && c->inodes_at == right.inodes_at &&
           c->copies_at == right.copies_at && c->entries_at == right.entries_at &&
           c->names_at == right.names_at && c->pool_at == right.pool_at;
}

const struct monarch_catalog *monarch_catalog_slow(struct session *s,
                                                   const struct monarch_catalog *old) {
    char name[40];
    uint64_t size = 0, generation = __atomic_load_n(&s->control->generation, __ATOMIC_ACQUIRE);
    put_number(put(name, "catalog."), generation, 10, 1);
    const struct monarch_catalog *c = map_segment(name, 0, &size);
    if (!c)
        return old;
    if (is_sound(c, size) && c->generation == generation &&
        __atomic_compare_exchange_n(&s->catalog, &old, c, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        uint32_t n = __atomic_fetch_add(&s->older_used, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&s->older[n % MONARCH_OLDER], old, __ATOMIC_RELEASE);
        return c;
    }
    sys_unmap(c, size);
    return old; /* also what another thread has put there meanwhile */
}

/* --- what belongs to whom --------------------------------------------------------------------- */

/* In another mount name space than the daemon's (a container): what is mounted below a source there
 * is not what was scanned. Returns whether a mount point lies below `path`; 1 in doubt. */
static int is_mounted_upon(const char *path, uint32_t path_len) {
    char buf[4096];
    size_t kept = 0;
    int found = 0;
    int fd = sys_openat(AT_FDCWD, "/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 1;
    for (long n; !found && (n = sys_read(fd, buf + kept, sizeof buf - 1 - kept)) > 0;) {
        char *line = buf, *end;
        buf[kept += (size_t)n] = 0;
        for (; !found && (end = strchr(line, '\n')); line = end + 1) {
            const char *at = line;
            *end = 0;
            for (int field = 0; at && field < 4; field++) /* the fifth is the mount point */
                at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL;
            /* Blanks in it are written as \\040: then the comparison ends there, in doubt. */
            size_t same = 0;
            while (at && same < path_len && at[same] == path[same])
                same++;
            found = !at || (same == path_len ? at[same] == '/' : at[same] == '\\');
        }
        kept = strlen(line);
        memmove(buf, line, kept);
        found |= kept >= sizeof buf - 1;
    }
    sys_close(fd);
    return found;
}

static int is_our_name_space(const struct monarch_control *k) {
    struct stat st;
    return !k->mounts ||
           (sys_fstatat(AT_FDCWD, "/proc/self/ns/mnt", &st, 0) == 0 && st.st_ino == k->mounts);
}

int monarch_mounts_are_ours(struct session *s) {
    uint32_t known = __atomic_load_n(&s->mounts, __ATOMIC_RELAXED);
    if (!known) {
        known = is_our_name_space(s->control) ? 1 : 2;
        __atomic_store_n(&s->mounts, known, __ATOMIC_RELAXED);
    }
    return known == 1 && !__atomic_load_n(&foreign, __ATOMIC_RELAXED);
}

int monarch_root_is_ours(struct session *s, unsigned source, int by_alias) {
    if (__builtin_expect(__atomic_load_n(&foreign, __ATOMIC_RELAXED), 0))
        return 0;
    unsigned shift = source * 4 + (by_alias ? 2 : 0);
    uint64_t known = __atomic_load_n(&s->roots, __ATOMIC_ACQUIRE) >> shift & 3;
    if (__builtin_expect(known, 1))
        return known == 1;
    const struct monarch_source *root = &s->control->source[source];
    struct stat st;
    uint64_t same = sys_fstatat(AT_FDCWD, by_alias ? root->alias : root->path, &st, 0) == 0 &&
                    st.st_dev == root->dev && st.st_ino == root->ino &&
                    (is_our_name_space(s->control) ||
                     !is_mounted_upon(by_alias ? root->alias : root->path,
                                      by_alias ? root->alias_len : root->path_len));
    __atomic_fetch_or(&s->roots, (same ? 1ULL : 2ULL) << shift, __ATOMIC_RELEASE);
    return (int)same;
}

void monarch_roots_may_differ(void) {
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    if (s)
        __atomic_store_n(&s->roots, 0, __ATOMIC_RELEASE);
}

void monarch_roots_are_foreign(void) { __atomic_store_n(&foreign, 1, __ATOMIC_RELAXED); }

struct monarch_stats *monarch_my_stats(struct session *s) {
    if (__builtin_expect(!my_slot, 0))
        my_slot = 1 + __atomic_fetch_add(&next_slot, 1, __ATOMIC_RELAXED) +
                  (unsigned)sys6(SYS_getpid, 0, 0, 0, 0, 0, 0);
    return &s->clients->stats[my_slot % MONARCH_STAT_SLOTS];
}

int monarch_source_on(const struct session *s, uint64_t dev, int from) {
    for (uint32_t i = (uint32_t)from; i < s->control->sources; i++)
        if (s->control->source[i].dev == dev)
            return (int)i;
    return -1;
}

int monarch_tier_on(const struct session *s, uint64_t dev, int from) {
    for (uint32_t i = (uint32_t)from; i < s->control->tiers; i++)
        if (s->control->tier[i].usable && s->control->tier[i].dev == dev)
            return (int)i;
    return -1;
}

__attribute__((constructor)) static void load(void) {
    monarch_real_init();
    const char *config = secure_getenv("MONARCH_CONFIG"), *off = secure_getenv("MONARCH_DISABLE");
    if (!config || !*config || (off && *off && strcmp(off, "0") != 0))
        return;
    int old_errno = errno;
    monarch_log_init();
    monarch_rank_init();
    if (!find_session_dir(config)) {
        monarch_warn("MONARCH_CONFIG names no file that can be found:", config,
                     "give its absolute path");
    } else {
        struct session *s = attach();
        if (!s)
            monarch_warn("no daemon serves", config, "start one with: monarch start -c FILE");
        else
            look_at_switches(s);
        __atomic_store_n(&monarch_current, s ? s : &waiting, __ATOMIC_RELEASE);
    }
    monarch_pass_warning_on();
    errno = old_errno;
}
