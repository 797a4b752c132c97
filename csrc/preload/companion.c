#define _GNU_SOURCE
#include "companion.h"

#include <errno.h>
#include <string.h>

#include "calls.h"
#include "promote.h"
#include "serve.h"
#include "sys.h"
#include "track.h"

/* Out of the way of programs that count on the lowest number. */
#define FIRST_NUMBER 500

/* By descriptor: that of its companion + 1, or, with this bit, that of the one which it stands
 * behind + 1. Both ways, because a program may close numbers that it does not know. */
#define IS_COMPANION 0x80000000U
static uint32_t table[MONARCH_TRACKED] SELDOM;
/* Of a companion's number: lower half of its file's inode. System calls of the program's own may
 * have closed it, and opened another file there. */
static uint32_t inode[MONARCH_TRACKED] SELDOM;
uint32_t monarch_companions;

static unsigned highest;     /* nothing above it ever had one, or was one */
static uint32_t posix_locks; /* some were taken */

static uint32_t get(int fd) {
    return (unsigned)fd < MONARCH_TRACKED ? __atomic_load_n(&table[fd], __ATOMIC_ACQUIRE) : 0;
}

static int change(int fd, uint32_t from, uint32_t to) {
    return __atomic_compare_exchange_n(&table[fd], &from, to, 0, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
}

static int companion_of(int fd) {
    uint32_t w = get(fd);
    return w && !(w & IS_COMPANION) ? (int)w - 1 : -1;
}

static int is_ours(int companion) {
    struct stat st;
    return sys_fstat(companion, &st) == 0 && S_ISREG(st.st_mode) &&
           (uint32_t)st.st_ino == __atomic_load_n(&inode[companion], __ATOMIC_RELAXED) &&
           (sys_fcntl(companion, F_GETFL, 0) & O_ACCMODE) == O_RDONLY;
}

/* --- made and closed -------------------------------------------------------------------------- */

static int close_on_exec(int fd) { return sys_fcntl(fd, F_GETFD, 0) & FD_CLOEXEC; }

/* Moves `fresh` to a high number and notes it; -1 if there is none. */
static int stand_behind(int fd, int fresh) {
    int command = close_on_exec(fd) ? F_DUPFD_CLOEXEC : F_DUPFD;
    int high = sys_fcntl(fresh, command, FIRST_NUMBER);
    if (high < 0) /* the limit is lower than that */
        high = sys_fcntl(fresh, command, 0);
    sys_close(fresh);
    if (high < 0 || high >= MONARCH_TRACKED || fd >= MONARCH_TRACKED) {
        if (high >= 0)
            sys_close(high);
        return -1;
    }
    struct stat st;
    sys_fstat(high, &st);
    __atomic_store_n(&inode[high], (uint32_t)st.st_ino, __ATOMIC_RELAXED);
    __atomic_fetch_add(&monarch_companions, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&table[high], IS_COMPANION | (uint32_t)(fd + 1), __ATOMIC_RELEASE);
    unsigned seen = __atomic_load_n(&highest, __ATOMIC_RELAXED);
    unsigned end = (unsigned)(high > fd ? high : fd);
    while (end > seen && !__atomic_compare_exchange_n(&highest, &seen, end, 0, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED))
        ;
    if (change(fd, 0, (uint32_t)high + 1))
        return high;
    change(high, IS_COMPANION | (uint32_t)(fd + 1), 0); /* another thread was faster */
    __atomic_fetch_sub(&monarch_companions, 1, __ATOMIC_SEQ_CST);
    sys_close(high);
    return companion_of(fd);
}

/* Closing any descriptor of a file drops the process's POSIX locks on it, also those that were
 * taken through another. */
static void drop_locks(int fd) {
    struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    struct stat copy, other;
    if (sys_fstat(fd, &copy) != 0 || (copy.st_mode & 07777) != 0400)
        return;
    for (unsigned i = 0; i <= __atomic_load_n(&highest, __ATOMIC_RELAXED); i++)
        if (companion_of((int)i) >= 0 && sys_fstat((int)i, &other) == 0 &&
            other.st_ino == copy.st_ino && other.st_dev == copy.st_dev)
            sys_fcntl(companion_of((int)i), F_SETLK, (long)&all);
}

void monarch_companion_close_slow(int fd) {
    uint32_t w = get(fd);
    if ((!w && !__atomic_load_n(&posix_locks, __ATOMIC_RELAXED)) || !monarch_track_is_mine())
        return;
    if (!w && __atomic_load_n(&posix_locks, __ATOMIC_RELAXED))
        drop_locks(fd);
    if (!w)
        return;
    int other = (int)(w & ~IS_COMPANION) - 1;
    if (!change(fd, w, 0))
        return;
    if (w & IS_COMPANION) {
        change(other, (uint32_t)fd + 1, 0);
    } else if (change(other, IS_COMPANION | (uint32_t)(fd + 1), 0) && is_ours(other)) {
        sys_close(other);
    }
    __atomic_fetch_sub(&monarch_companions, 1, __ATOMIC_SEQ_CST);
}

void monarch_companion_close_range_slow(unsigned first, unsigned last) {
    unsigned end = __atomic_load_n(&highest, __ATOMIC_RELAXED);
    for (unsigned fd = first; fd <= last && fd <= end && monarch_has_companions(); fd++)
        if (get((int)fd) || __atomic_load_n(&posix_locks, __ATOMIC_RELAXED))
            monarch_companion_close_slow((int)fd);
}

void monarch_companion_again_slow(int fd, int fresh) {
    int old_errno = errno, behind = companion_of(fd);
    if (behind < 0 || fresh < 0 || fresh == fd || !monarch_track_is_mine())
        return;
    int copy = sys_fcntl(behind, F_DUPFD_CLOEXEC, 0);
    if (copy >= 0)
        stand_behind(fresh, copy);
    errno = old_errno;
}

void monarch_companion_flag_slow(int fd, int flag) {
    int behind = companion_of(fd);
    if (behind >= 0 && monarch_track_is_mine())
        sys_fcntl(behind, F_SETFD, flag & FD_CLOEXEC);
}

/* --- duplicates that were made before -----------------------------------------------------------
 */

#define KCMP_FILE 0

/* Calls act(fd, duplicate, data) for each other descriptor of this process that shares `fd`'s
 * offset. Where the kernel does not compare descriptors, for none. */
static void for_duplicates(int fd, void (*act)(int fd, int duplicate, int data), int data) {
    char names[1024] __attribute__((aligned(8)));
    long pid = sys_getpid(), n;
    int list = sys_openat(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (list >= 0 && (n = sys6(SYS_getdents64, list, (long)names, sizeof names, 0, 0, 0)) > 0)
        for (long at = 0; at < n;) {
            const struct dirent *e = (const void *)(names + at);
            int other = 0;
            at += e->d_reclen;
            for (const char *digit = e->d_name; *digit >= '0' && *digit <= '9'; digit++)
                other = other * 10 + (*digit - '0');
            if (e->d_name[0] != '.' && other != fd && other != list &&
                sys6(SYS_kcmp, pid, pid, KCMP_FILE, fd, other, 0) == 0)
                act(fd, other, data);
        }
    if (list >= 0)
        sys_close(list);
}

static void share(int fd, int duplicate, int data) {
    (void)data;
    monarch_companion_again_slow(fd, duplicate);
}

static void replace(int fd, int duplicate, int source) {
    (void)fd;
    sys6(SYS_dup3, source, duplicate, close_on_exec(duplicate) ? O_CLOEXEC : 0, 0, 0, 0);
}

void monarch_companion_has_posix_locks(void) {
    __atomic_store_n(&posix_locks, 1, __ATOMIC_RELAXED);
}

int monarch_is_companion(int fd) {
    return (get(fd) & IS_COMPANION) && monarch_track_is_mine() && is_ours(fd);
}

/* --- for the calls ------------------------------------------------------------------------------
 */

/* The companion there is, or a new one. */
static int find_or_open(int fd) {
    char path[MONARCH_PATH_MAX];
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    const struct monarch_catalog *c;
    struct stat st;
    const struct monarch_entry *e = s && sys_fstat(fd, &st) == 0 && S_ISREG(st.st_mode)
                                        ? monarch_behind_copy(&s, &c, &st)
                                        : NULL;
    if (!e)
        return -1;
    monarch_track_mark();
    if (fd >= MONARCH_TRACKED || !monarch_track_is_mine())
        return -2;
    int known = monarch_has_companions() ? companion_of(fd) : -1;
    if (known >= 0 && monarch_is_still(known, s, e))
        return known;
    if (known >= 0) /* of what had this number before, and was closed unseen */
        monarch_companion_close_slow(fd);
    if (!monarch_source_path(s, c, e, path))
        return -1;
    int flags = sys_fcntl(fd, F_GETFL, 0) & (O_NONBLOCK | O_LARGEFILE | O_NOATIME);
    int fresh = sys_openat(AT_FDCWD, path, flags | O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fresh == -ENOENT || fresh == -ELOOP)
        return -1;
    if (fresh < 0)
        return -2;
    if (!monarch_is_still(fresh, s, e)) { /* another file has its name now */
        sys_close(fresh);
        return -1;
    }
    fresh = stand_behind(fd, fresh);
    if (fresh < 0)
        return -2;
    for_duplicates(fd, share, 0);
    return fresh;
}

int monarch_companion(int fd) {
    if (!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE) || fd < 0)
        return -1;
    int behind = find_or_open(fd);
    if (behind >= 0) {
        long at = sys_lseek(fd, 0, SEEK_CUR);
        if (at >= 0)
            sys_lseek(behind, at, SEEK_SET);
    }
    return behind;
}

static int is_one_thread(void) {
    struct stat st;
    return sys_fstatat(AT_FDCWD, "/proc/self/task", &st, 0) == 0 && st.st_nlink == 3;
}

void monarch_companion_compare(int fd) {
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    const struct monarch_catalog *c;
    struct stat copy, now;
    int behind = companion_of(fd);
    const struct monarch_entry *e =
        behind >= 0 && s && sys_fstat(fd, &copy) == 0 ? monarch_behind_copy(&s, &c, &copy) : NULL;
    if (!e || sys_fstat(behind, &now) != 0 || now.st_ino != e->ino ||
        ((uint64_t)now.st_size == e->size &&
         now.st_mtim.tv_sec * 1000000000 + now.st_mtim.tv_nsec == e->mtime_ns &&
         now.st_ctim.tv_sec * 1000000000 + now.st_ctim.tv_nsec == e->ctime_ns))
        return;
    monarch_mark_changed(s->clients, now.st_dev, now.st_ino);
    sys_lseek(behind, sys_lseek(fd, 0, SEEK_CUR), SEEK_SET);
    /* In another thread the number of a duplicate may be another file's by now: they keep the copy.
     */
    if (is_one_thread())
        for_duplicates(fd, replace, behind);
    replace(fd, fd, behind);
}
