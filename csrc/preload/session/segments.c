#include "preload/session/segments.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "preload/process/apart.h"
#include "preload/process/calls.h"
#include "preload/process/log.h"
#include "preload/process/text.h"
#include "shared/sys.h"
#include "shared/xxh3.h"

#define DIR_MAX 256
/* Size [bytes] of a buffer for "catalog.", 20 digits and the NUL. The buffer has no spare room,
 * because a thread with a small stack may make the first open. */
#define NAME_BYTES 29
/* Maximum number of addresses that are kept for later sessions, for each kind of segment (enum
 * monarch_range). A process rarely has more than two sessions at a time. Further addresses stay
 * mapped and unused, which costs address space, but no memory. */
#define SPARES 4

static char session_dir[DIR_MAX], control_path[DIR_MAX + sizeof "/control"];

int monarch_find_session_dir(const char *config) {
    const char *shm = secure_getenv("MONARCH_SHM");
    char resolved[MONARCH_SOURCE_PATH * 4], *at = session_dir;
    if (!shm || !*shm || strlen(shm) > DIR_MAX - 64)
        shm = "/dev/shm";
    if (strlen(config) >= sizeof resolved || !REAL(realpath)(config, resolved))
        return 0;
    at = put(put(at, shm), "/monarch-");
    at = put_number(at, (uint64_t)sys6(SYS_geteuid, 0, 0, 0, 0, 0, 0), 10, 1);
    put_number(put(at, "/"), monarch_xxh3(resolved, strlen(resolved)), 16, 16);
    put(put(control_path, session_dir), "/control");
    return 1;
}

const char *monarch_session_dir(void) { return session_dir; }

/* --- mapping -------------------------------------------------------------------------------- */

/* open_segment and look_at must not be inlined. Otherwise, the path's buffer and the `struct stat`
 * would be on the stack at the same time, and the stack may be small. */
__attribute__((noinline)) static int open_segment(const char *name, int flags) {
    char path[DIR_MAX + 1 + NAME_BYTES];
    put(put(put(path, session_dir), "/"), name);
    return sys_openat(AT_FDCWD, path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

/* Reads the segment's size and identity. If another user can access the segment, sets the size to
 * 0, so that the library does not use it. A user who can write to a segment could make reads
 * return the data of other files. */
__attribute__((noinline)) static void look_at(int fd, struct monarch_segment *out) {
    struct stat st;
    out->size = 0;
    if (sys_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && !(st.st_mode & 077) &&
        st.st_uid == (uid_t)sys6(SYS_geteuid, 0, 0, 0, 0, 0, 0) && st.st_size > 0) {
        out->size = (uint64_t)st.st_size;
        out->dev = st.st_dev;
        out->ino = st.st_ino;
    }
}

int monarch_open_segment(const char *name, int flags, uint64_t *size) {
    struct monarch_segment found;
    int fd = open_segment(name, flags);
    if (fd >= 0)
        look_at(fd, &found);
    *size = fd < 0 ? 0 : found.size;
    return fd;
}

int monarch_was_stopped(void) {
    int fd = open_segment("stopped", O_RDONLY);
    if (fd >= 0)
        sys_close(fd);
    return fd >= 0;
}

/* Arguments and result of map_whole and map_range. */
struct request {
    char name[NAME_BYTES];
    struct monarch_segment found;
    enum monarch_range kind; /* used by map_range */
    int reused;
    int has_no_number; /* 1: the process has no free descriptor number */
};
static_assert(sizeof(struct request) <= MONARCH_APART_BYTES,
              "monarch_run_apart must be able to copy a request");

/* Runs `map`. If the process has no free descriptor, runs `map` again in a thread with its own
 * table of descriptors. Without the mapping, this process could not record which files it changes,
 * and other processes would read outdated copies of these files. */
static int run(void (*map)(void *request), struct request *r) {
    map(r);
    if (r->has_no_number)
        monarch_run_apart(map, r, sizeof *r);
    return r->found.map != NULL;
}

static void map_whole(void *at) {
    struct request *r = at;
    int fd = open_segment(r->name, O_RDONLY);
    r->has_no_number = fd == -EMFILE;
    if (fd < 0)
        return;
    look_at(fd, &r->found);
    if (r->found.size)
        r->found.map = r->found.size < MONARCH_HUGE_PAGE
                           ? sys_map(fd, r->found.size, PROT_READ)
                           : sys_map_aligned(fd, r->found.size, PROT_READ, MONARCH_HUGE_PAGE);
    sys_close(fd);
}

int monarch_map_segment(const char *name, struct monarch_segment *out) {
    struct request r = {.has_no_number = 0};
    put(r.name, name);
    int done = run(map_whole, &r);
    *out = r.found;
    return done;
}

__attribute__((noinline)) int monarch_is_linked(const struct session *s) {
    struct stat st;
    /* As long as this process has the segment mapped, no other file can get the segment's inode
     * number. */
    return sys_fstatat(AT_FDCWD, control_path, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           st.st_ino == s->ino && st.st_dev == s->dev;
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

int monarch_control_is_usable(const struct monarch_control *k, uint64_t size) {
    /* A segment of another version may be smaller than sizeof *k. So the version is checked before
     * the size. The fields before `state` have the same layout in all versions. */
    if (size < offsetof(struct monarch_control, state) || k->magic != MONARCH_MAGIC)
        return 0;
    if (k->version != MONARCH_VERSION) {
        monarch_warn("the daemon has another version than", "libmonarch.so",
                     "Restart the daemon with the `monarch` command of this installation.");
        return 0;
    }
    return size >= sizeof *k && k->state == MONARCH_SERVING && paths_fit(k);
}

/* --- ranges --------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint64_t bytes;
    int prot;
} ranges[] = {{"clients", sizeof(struct monarch_clients), PROT_READ | PROT_WRITE},
              {"fills", sizeof(struct monarch_fills), PROT_READ}};

static void *spare[MONARCH_RANGES][SPARES];

static void *take_spare(enum monarch_range kind) {
    for (int i = 0; i < SPARES; i++) {
        void *at = __atomic_exchange_n(&spare[kind][i], NULL, __ATOMIC_ACQ_REL);
        if (at)
            return at;
    }
    return NULL;
}

static void keep_spare(enum monarch_range kind, void *at) {
    for (int i = 0; i < SPARES; i++) {
        void *none = NULL;
        if (__atomic_compare_exchange_n(&spare[kind][i], &none, at, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return;
    }
}

static void map_range(void *request) {
    struct request *r = request;
    uint64_t bytes = ranges[r->kind].bytes;
    int fd = open_segment(r->name, ranges[r->kind].prot & PROT_WRITE ? O_RDWR : O_RDONLY);
    r->has_no_number = fd == -EMFILE;
    if (fd < 0)
        return;
    look_at(fd, &r->found);
    void *map = NULL, *at = r->found.size >= bytes ? take_spare(r->kind) : NULL;
    if (at && !(map = sys_map_over(at, fd, bytes, ranges[r->kind].prot)))
        keep_spare(r->kind, at);
    r->reused = map != NULL;
    if (!map && r->found.size >= bytes)
        map = sys_map(fd, bytes, ranges[r->kind].prot);
    r->found.map = map;
    sys_close(fd);
}

void *monarch_map_range(enum monarch_range kind, int *reused) {
    struct request r = {.kind = kind};
    put(r.name, ranges[kind].name);
    run(map_range, &r);
    *reused = r.reused;
    return (void *)r.found.map;
}

static int clear(const void *at, uint64_t bytes, int prot) {
    return sys_map_over((void *)at, -1, bytes, prot) != NULL;
}

void monarch_discard_range(enum monarch_range kind, void *at, int reused) {
    if (!reused)
        sys_unmap(at, ranges[kind].bytes);
    else if (clear(at, ranges[kind].bytes, ranges[kind].prot))
        keep_spare(kind, at);
}

static void release_catalog(const struct monarch_catalog *c) {
    if (c && c->bytes)
        clear(c, c->bytes, PROT_READ);
}

/* Addresses of catalogs are not reused. A thread may still have a pointer to an entry of the old
 * catalog. At a reused address, this thread would find another file's entry. */
void monarch_release_session(struct session *s) {
    if (__atomic_exchange_n(&s->released, 1, __ATOMIC_ACQ_REL))
        return;
    /* `control` is cleared first. A thread that finds zeros in `control` maps no further segment
     * of the session. */
    clear(s->control, sizeof *s->control, PROT_READ);
    release_catalog(__atomic_load_n(&s->catalog, __ATOMIC_ACQUIRE));
    for (int i = 0; i < MONARCH_OLDER; i++)
        release_catalog(__atomic_load_n(&s->older[i], __ATOMIC_ACQUIRE));
    void *fills = (void *)__atomic_load_n(&s->fills, __ATOMIC_ACQUIRE);
    if (fills)
        monarch_discard_range(MONARCH_RANGE_FILLS, fills, 1);
    monarch_discard_range(MONARCH_RANGE_CLIENTS, s->clients, 1);
}

/* --- segments that are mapped later ----------------------------------------------------------- */

const struct monarch_fills *monarch_fills_of(struct session *s) {
    const struct monarch_fills *old = __atomic_load_n(&s->fills, __ATOMIC_ACQUIRE);
    int reused = 0;
    if (__builtin_expect(old != NULL, 1) || !monarch_is_serving(s))
        return old;
    struct monarch_fills *fresh = monarch_map_range(MONARCH_RANGE_FILLS, &reused);
    if (!fresh)
        return NULL;
    /* The segment was found by its name, so it could belong to a new daemon. But a new daemon
     * closes the old daemon's session before it creates segments. So if this session is still
     * served, the segment belongs to it. */
    if (monarch_is_serving(s) &&
        __atomic_compare_exchange_n(&s->fills, &old, fresh, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return fresh;
    monarch_discard_range(MONARCH_RANGE_FILLS, fresh, reused);
    return old;
}

/* Returns whether the catalog's header is valid. An offset in a damaged header could lead outside
 * the segment. */
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
    char name[NAME_BYTES];
    struct monarch_segment found;
    uint64_t generation = __atomic_load_n(&s->control->generation, __ATOMIC_ACQUIRE);
    put_number(put(name, "catalog."), generation, 10, 1);
    if (!monarch_map_segment(name, &found))
        return old;
    const struct monarch_catalog *c = found.map;
    /* A new daemon may have made this catalog, because its catalogs have the same names as those
     * of the old daemon. So the catalog is stored only if this session's daemon still serves. */
    if (is_sound(c, found.size) && c->generation == generation && monarch_is_serving(s) &&
        __atomic_compare_exchange_n(&s->catalog, &old, c, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        uint32_t n = __atomic_fetch_add(&s->older_used, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&s->older[n % MONARCH_OLDER], old, __ATOMIC_RELEASE);
        return c;
    }
    sys_unmap(c, found.size);
    return old; /* If another thread has stored a catalog first, `old` is now that catalog. */
}
