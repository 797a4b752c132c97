#include "preload/lookup/links.h"

#include <string.h>
#include <sys/sysmacros.h>

#include "preload/lookup/cwd.h"
#include "preload/process/proc.h"
#include "preload/session/copies.h"
#include "preload/session/roots.h"
#include "shared/sys.h"
#include "shared/xxh3.h"

/* The table stores where directories lead. It consists of SETS sets of WAYS entries, and a
 * directory's key selects its set. In a full set, a new entry replaces an old entry. If the
 * directory of the old entry is used again, the library must find out again where this directory
 * leads. */
#define SETS 1024
#define WAYS 4
/* A directory that has led to no source may later get a link into a source. So one in LOOK_AGAIN
 * files that are opened in such directories is checked: a call of fstat shows whether the file is
 * in a source. */
#define LOOK_AGAIN 64
#ifndef STATX_MNT_ID
#define STATX_MNT_ID 0x1000U /* since Linux 5.8 */
#endif

uint32_t monarch_links_met;

/* The entries of the table. Each entry is atomic. It consists of the upper 50 bits of the
 * directory's key, the length of the prefix (12 bits; struct monarch_hint), and the enum
 * monarch_lead (the 2 lowest bits). A free entry is 0. */
static uint64_t table[SETS][WAYS] SELDOM;
#define TAG(word) ((word) >> 14)
#define PREFIX(word) ((size_t)(word) >> 2 & 0xFFF)
#define LEAD(word) ((enum monarch_lead)((word)&3))

/* --- the table -------------------------------------------------------------------------------- */

/* Returns the key of a directory's path. A relative path has a different key in each working
 * directory. */
static uint64_t key_of(const char *path, size_t n) {
    uint64_t base =
        *path == '/' ? 0 : (__atomic_load_n(&monarch_cwd_is, __ATOMIC_RELAXED) >> 2) + 1;
    return monarch_xxh3(path, n) ^ base * 0x9E3779B97F4A7C15ULL;
}

static uint64_t find(uint64_t key) {
    const uint64_t *set = table[key % SETS];
    for (int i = 0; i < WAYS; i++) {
        uint64_t word = __atomic_load_n(&set[i], __ATOMIC_RELAXED);
        if (TAG(word) == TAG(key) && word)
            return word;
    }
    return 0;
}

/* Returns the place for an entry with this key: the entry that already has the key, otherwise a
 * free entry, otherwise the entry that the caller must replace. Entries with
 * MONARCH_LEAD_ELSEWHERE are replaced first, because the library can make such an entry again at
 * little cost. */
static uint64_t *place_for(uint64_t key) {
    uint64_t *set = table[key % SETS], *best = &set[key / SETS % WAYS];
    for (int i = 0; i < WAYS; i++) {
        uint64_t word = __atomic_load_n(&set[i], __ATOMIC_RELAXED);
        uint64_t old = __atomic_load_n(best, __ATOMIC_RELAXED);
        if (word && TAG(word) == TAG(key))
            return &set[i];
        if (LEAD(word) < LEAD(old))
            best = &set[i];
    }
    return best;
}

static void keep(uint64_t key, enum monarch_lead lead, size_t prefix) {
    uint64_t word = lead ? TAG(key) << 14 | prefix << 2 | lead : 0;
    uint64_t *place = place_for(key);
    if (!lead && TAG(__atomic_load_n(place, __ATOMIC_RELAXED)) != TAG(key))
        return;
    __atomic_store_n(place, word, __ATOMIC_RELAXED);
    if (lead > MONARCH_LEAD_ELSEWHERE && !__atomic_load_n(&monarch_links_met, __ATOMIC_RELAXED))
        __atomic_store_n(&monarch_links_met, 1, __ATOMIC_RELAXED);
}

static int is_due(void) {
    static __thread unsigned opens __attribute__((tls_model("initial-exec")));
    return ++opens % LOOK_AGAIN == 0;
}

/* Returns the length of the directory part of a path of `n` bytes. */
static size_t directory_length(const char *path, size_t n) {
    const char *slash = memrchr(path, '/', n);
    return slash ? (size_t)(slash - path) : 0;
}

/* If a directory above the path's directory is known to lead into a source, returns its entry in
 * the table. In that case, the path's directory leads into the source too, and this function
 * records that in the table. Otherwise returns 0. directory: length of the path's directory. */
static uint64_t inherit(const char *path, size_t directory) {
    uint64_t key = key_of(path, directory);
    for (size_t i = 1; i < directory; i++) {
        uint64_t word = path[i] == '/' ? find(key_of(path, i)) : 0;
        if (LEAD(word) == MONARCH_LEAD_DIRECTORY && PREFIX(word) == i) {
            keep(key, MONARCH_LEAD_DIRECTORY, i);
            return word;
        }
    }
    return 0;
}

/* Returns the first of three entries that exists, or 0. The first is the path's own entry, if the
 * path is a link to a directory of a source. The second is `word`, the entry of the path's
 * directory; 0 if there is none. The third is the entry of a directory above that leads into a
 * source. */
__attribute__((noinline)) static uint64_t look_around(const char *path, size_t n, size_t directory,
                                                      uint64_t word) {
    uint64_t own = find(key_of(path, n));
    if (LEAD(own) == MONARCH_LEAD_DIRECTORY)
        return own;
    return word ? word : inherit(path, directory);
}

struct monarch_hint monarch_hint_for(const char *path, size_t n) {
    size_t directory = directory_length(path, n);
    uint64_t word = find(key_of(path, directory));
    if (__builtin_expect(__atomic_load_n(&monarch_links_met, __ATOMIC_RELAXED), 0) &&
        LEAD(word) < MONARCH_LEAD_DIRECTORY)
        word = look_around(path, n, directory, word);
    if (LEAD(word) == MONARCH_LEAD_ELSEWHERE && __builtin_expect(is_due(), 0))
        word = 0;
    return (struct monarch_hint){LEAD(word), PREFIX(word)};
}

/* --- what the kernel says --------------------------------------------------------------------- */

/* Returns the number of the catalog's entry for the file with this device and inode, or -1 if there
 * is none. Searches all sources on the device, because one source may lie within another. */
static int64_t entry_of(const struct session *s, const struct monarch_catalog *c, uint64_t dev,
                        uint64_t ino) {
    for (int i = monarch_source_on(s, dev, 0); i >= 0; i = monarch_source_on(s, dev, i + 1)) {
        int64_t id = monarch_find_inode(c, (unsigned)i, ino);
        if (id >= 0)
            return id;
    }
    return -1;
}

/* Stores in *x the identity of the directory to which `path` leads. Returns 0 if `path` leads to
 * no directory. The source's server is not asked if the kernel has cached the attributes. */
static int look(const char *path, struct statx *x) {
    return sys6(SYS_statx, AT_FDCWD, (long)path, AT_STATX_DONT_SYNC,
                STATX_TYPE | STATX_INO | STATX_MNT_ID, (long)x, 0) == 0 &&
           S_ISDIR(x->stx_mode);
}

/* Returns whether `a` and `b`, the results of two calls of `look`, describe the same directory
 * under the same mount. If a directory is mounted twice, different file systems may be mounted
 * below its two mount points. Older headers do not name the field of the mount's id, so the id is
 * read by its position after the device. */
static int is_same_directory(const struct statx *a, const struct statx *b) {
    uint64_t mount_a, mount_b;
    memcpy(&mount_a, &a->stx_dev_minor + 1, sizeof mount_a);
    memcpy(&mount_b, &b->stx_dev_minor + 1, sizeof mount_b);
    return a->stx_ino == b->stx_ino && a->stx_dev_major == b->stx_dev_major &&
           a->stx_dev_minor == b->stx_dev_minor && a->stx_mask & b->stx_mask & STATX_MNT_ID &&
           mount_a == mount_b;
}

/* If the first `n` bytes of the path lead to a directory of a source, returns the catalog's entry
 * of this directory. Otherwise returns NULL. Finds the entry by the directory's inode number.
 * Since the scan, the directory may have been moved, and the entry's path may lead to another
 * directory. So this function also checks that the entry's path leads to the same directory. */
__attribute__((noinline)) static const struct monarch_entry *
directory_at(const struct session *s, const struct monarch_catalog *c, const char *path, size_t n) {
    char name[MONARCH_PATH_MAX];
    struct statx named, known;
    if (n >= sizeof name)
        return NULL;
    memcpy(name, path, n);
    name[n] = 0;
    if (!look(name, &named))
        return NULL;
    int64_t id = entry_of(s, c, makedev(named.stx_dev_major, named.stx_dev_minor), named.stx_ino);
    const struct monarch_entry *e = id >= 0 ? &monarch_entries(c)[id] : NULL;
    return e && e->kind == MONARCH_DIR && monarch_source_path(s, c, e, name) &&
                   look(name, &known) && is_same_directory(&named, &known)
               ? e
               : NULL;
}

const struct monarch_entry *monarch_enter_directory(struct session *s,
                                                    const struct monarch_catalog *c,
                                                    const char *path, size_t prefix) {
    const struct monarch_entry *e = directory_at(s, c, path, prefix);
    if (!e) {
        keep(key_of(path, directory_length(path, strlen(path))), MONARCH_LEAD_NEW, 0);
        keep(key_of(path, prefix), MONARCH_LEAD_NEW, 0);
    }
    return e;
}

int64_t monarch_enter_file(struct session *s, const struct monarch_catalog *c, int dir,
                           const char *path, int follow, uint32_t *version) {
    struct stat st;
    if (sys_fstatat(dir, path, &st, follow ? 0 : AT_SYMLINK_NOFOLLOW) != 0)
        return MONARCH_OUTSIDE;
    int64_t id = S_ISREG(st.st_mode) ? entry_of(s, c, st.st_dev, st.st_ino) : -1;
    if (id >= 0) {
        const struct monarch_entry *e = &monarch_entries(c)[id];
        *version = __atomic_load_n(&e->version, __ATOMIC_ACQUIRE);
        /* The daemon has made the copy of the file that it found below the source's path. In this
         * process, this path may lead to another directory, for example in a container. In that
         * case, the entry is not used. */
        return monarch_root_is_ours(s, e->source, 0) && monarch_is_as_scanned(s, e, &st)
                   ? id
                   : MONARCH_OUTSIDE;
    }
    /* The table's hint says that the directory leads to files of a source. So each open in this
     * directory costs an additional system call, which is wasted for a file outside all sources.
     * About one in LOOK_AGAIN of the wasted calls removes the hint. */
    if (is_due())
        keep(key_of(path, directory_length(path, strlen(path))), MONARCH_LEAD_NEW, 0);
    return MONARCH_OUTSIDE;
}

/* --- learning --------------------------------------------------------------------------------- */

/* Finds out where the first `n` bytes of the path lead, and stores the result in the table.
 * Returns whether the path leads into a source. st: attributes of the file to which the complete
 * path leads. */
static int learn(struct session *s, const char *path, size_t n, const struct stat *st) {
    const struct monarch_catalog *c = monarch_catalog_of(s);
    uint64_t key = key_of(path, n);
    int is_near = monarch_source_on(s, st->st_dev, 0) >= 0;
    if (!c || !is_near || entry_of(s, c, st->st_dev, st->st_ino) < 0) {
        /* The catalog does not contain the file. So the table records that the directory leads to
         * no source, with two exceptions. If the path leads to a directory, this directory may
         * contain links into a source. If the file is on a source's device, and the first scan has
         * not ended, the scan may still find the file (is_unmet). */
        if (S_ISREG(st->st_mode) && (!is_near || s->control->scanned))
            keep(key, MONARCH_LEAD_ELSEWHERE, 0);
        return 0;
    }
    for (size_t i = 1; i <= n; i++)
        if ((i == n || path[i] == '/') && path[i - 1] != '/' && directory_at(s, c, path, i)) {
            keep(key_of(path, i), MONARCH_LEAD_DIRECTORY, i);
            keep(key, MONARCH_LEAD_DIRECTORY, i);
            return 1;
        }
    if (S_ISREG(st->st_mode))
        keep(key, MONARCH_LEAD_FILES, 0);
    return S_ISREG(st->st_mode);
}

/* Returns whether the path that the kernel reports for `fd` is in a source. Must not be inlined:
 * its buffer takes much of the stack, and few opens need it. */
__attribute__((noinline)) static int is_named_in_source(struct session *s, int fd) {
    char path[MONARCH_PATH_MAX];
    const char *rel;
    int source =
        monarch_name_of(fd, path) ? monarch_prefix(s->control, path, strlen(path), &rel) : -1;
    return source >= 0 && monarch_root_is_ours(s, (unsigned)source, 0);
}

/* Call this for an opened file that is not in the catalog. Returns whether the file is in a source
 * and the first scan may still find it. If the file is in no source, the other files of its
 * directory probably are in no source either. Before the end of the first scan, this function then
 * records in the table that the directory leads to no source. */
static int is_unmet(struct session *s, const char *path, int fd, uint64_t dev) {
    uint64_t key = key_of(path, directory_length(path, strlen(path)));
    if (s->control->scanned || monarch_source_on(s, dev, 0) < 0)
        return 0;
    if (is_named_in_source(s, fd))
        return 1;
    if (LEAD(find(key)) == MONARCH_LEAD_NEW)
        keep(key, MONARCH_LEAD_ELSEWHERE, 0);
    return 0;
}

int monarch_learn_open(struct session *s, const char *path, int fd) {
    struct stat st;
    return sys_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
           (learn(s, path, directory_length(path, strlen(path)), &st) ||
            is_unmet(s, path, fd, st.st_dev));
}

/* Returns whether the library should find out where the first `n` bytes of `path` lead. The result
 * is 0 in three cases: the table has an entry for these bytes that need not be checked again; the
 * path begins with the name of a source; or the path is relative, and may lead into a source even
 * without a link (monarch_is_far). */
static int is_new(const struct session *s, const char *path, size_t n) {
    const char *rel;
    uint64_t word = find(key_of(path, n));
    if (LEAD(word) > MONARCH_LEAD_ELSEWHERE || (word && !is_due()))
        return 0;
    return *path == '/' ? monarch_prefix(s->control, path, strlen(path), &rel) < 0
                        : monarch_is_far(AT_FDCWD, path);
}

static size_t without_slashes(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    return n;
}

void monarch_learn_directory(const char *path, const struct stat *st) {
    struct session *s = session_for_reading();
    size_t n = s && monarch_source_on(s, st->st_dev, 0) >= 0 ? without_slashes(path) : 0;
    if (n && is_new(s, path, n))
        learn(s, path, n, st);
}

void monarch_learn_listed(const char *path, int fd) {
    struct session *s = session_for_reading();
    struct stat st;
    if (s && is_new(s, path, without_slashes(path)) && sys_fstat(fd, &st) == 0)
        learn(s, path, without_slashes(path), &st);
}
