#include "preload/session/roots.h"

#include <string.h>

#include "shared/sys.h"

/* Atomic. 1: a thread of this process may have entered another mount namespace, or may have a root
 * directory of its own. The value never returns to 0. */
static uint32_t foreign;

/* --- mounts --------------------------------------------------------------------------------- */

/* Returns 1 if a mount point is below `path`, or if that is uncertain. Otherwise returns 0. This
 * check is for a process in another mount namespace than the daemon, for example in a container.
 * There, a file system that the daemon does not see may be mounted below a source. mountinfo is
 * read in small parts, because the stack may be small. */
__attribute__((noinline)) static int is_mounted_upon(const char *path, uint32_t path_len) {
    char buf[512];
    /* index of the current field in its line, counted from 0; field 4 is the mount point */
    unsigned field = 0;
    /* Number of bytes of the mount point that were read so far and are equal to the beginning of
     * `path`. Valid only while `differs` is 0. */
    size_t same = 0;
    int differs = 0, found = 0;
    int fd = sys_openat(AT_FDCWD, "/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 1;
    for (long n; !found && (n = sys_read(fd, buf, sizeof buf)) > 0;)
        for (const char *at = buf; !found && at < buf + n; at++) {
            if (*at == '\n') {
                found = field < 4;
                field = 0;
                same = 0;
                differs = 0;
            } else if (*at == ' ') {
                field++;
            } else if (field == 4 && !differs) {
                differs = same == path_len || *at != path[same];
                /* If the first different byte is a backslash, the result is uncertain, because
                 * mountinfo writes a blank as \040. */
                found = differs && *at == (same == path_len ? '/' : '\\');
                same++;
            }
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
    return known == 1 && !__atomic_load_n(&foreign, __ATOMIC_ACQUIRE);
}

/* --- tiers ---------------------------------------------------------------------------------- */

static const struct monarch_tier *foreign_tier(const struct monarch_control *k) {
    const uid_t user = (uid_t)sys6(SYS_geteuid, 0, 0, 0, 0, 0, 0);
    struct stat st;
    for (uint32_t i = 0; i < k->tiers; i++) {
        const struct monarch_tier *t = &k->tier[i];
        if (t->usable && sys_fstatat(AT_FDCWD, t->path, &st, 0) == 0 &&
            (st.st_dev != t->dev || st.st_ino != t->ino || st.st_uid != user || st.st_mode & 077))
            return t;
    }
    return NULL;
}

int monarch_has_foreign_tier(const struct monarch_control *k) {
    const struct monarch_tier *t = foreign_tier(k);
    if (t)
        monarch_warn("a tier's path does not lead to the daemon's private directory:", t->path,
                     "Run `monarch doctor` for details.");
    return t != NULL;
}

/* --- roots ---------------------------------------------------------------------------------- */

/* The field `roots` of struct session has a word for the sources' paths, and a word for their
 * aliases. The lower half of a word has two bits per source: 0 if it is unknown where the path
 * leads, 1 if it leads to the scanned directory, 2 if it leads to another directory. The upper
 * half counts how often the process has changed its root directory. */
static_assert(MONARCH_MAX_SOURCES <= 16, "the bits of all sources must fit into the lower half");

static int is_ours_now(const struct session *s, unsigned source, int by_alias) {
    const struct monarch_source *root = &s->control->source[source];
    const char *path = by_alias ? root->alias : root->path;
    struct stat st;
    return sys_fstatat(AT_FDCWD, path, &st, 0) == 0 && st.st_dev == root->dev &&
           st.st_ino == root->ino &&
           (is_our_name_space(s->control) ||
            !is_mounted_upon(path, by_alias ? root->alias_len : root->path_len));
}

int monarch_root_is_ours_slow(struct session *s, unsigned source, int by_alias) {
    uint64_t *word = &s->roots[by_alias], seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    for (;;) {
        uint64_t known = seen >> source * 2 & 3, then = seen;
        if (__atomic_load_n(&foreign, __ATOMIC_ACQUIRE))
            return 0;
        if (known)
            return known == 1;
        /* After a chroot (the upper half of the word is not 0), the paths of tiers may lead to
         * other directories too. So they are checked as well. */
        uint64_t same =
            is_ours_now(s, source, by_alias) && (!(seen >> 32) || !foreign_tier(s->control));
        /* Stores `same`, unless another thread has called chroot in the meantime. A chroot changes
         * the count in the upper half of *word. In that case, the outer loop checks the path
         * again. */
        while (seen >> 32 == then >> 32)
            if (__atomic_compare_exchange_n(word, &seen, seen | (same ? 1ULL : 2ULL) << source * 2,
                                            0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
                return (int)same;
    }
}

void monarch_roots_may_differ(void) {
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    for (int i = 0; s && i < 2; i++) {
        uint64_t seen = __atomic_load_n(&s->roots[i], __ATOMIC_ACQUIRE);
        while (!__atomic_compare_exchange_n(&s->roots[i], &seen, ((seen >> 32) + 1) << 32, 0,
                                            __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            ;
    }
}

void monarch_roots_are_foreign(void) {
    __atomic_store_n(&foreign, 1, __ATOMIC_RELEASE);
    monarch_roots_may_differ();
}

/* --- the working directory -------------------------------------------------------------------- */

uint64_t monarch_cwd_is;

void monarch_cwd_may_differ(void) {
    uint64_t seen = __atomic_load_n(&monarch_cwd_is, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(&monarch_cwd_is, &seen, (seen & ~3ULL) + 4, 0,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        ;
}

void monarch_sources_may_differ(const struct session *s) {
    static uint32_t known; /* number of sources when this function was last called */
    uint32_t now = s->control->sources;
    if (now != __atomic_exchange_n(&known, now, __ATOMIC_RELAXED))
        monarch_cwd_may_differ();
}
