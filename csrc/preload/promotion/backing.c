#include "preload/promotion/backing.h"

#include <errno.h>
#include <sys/resource.h>

#include "preload/descriptors/locked_files.h"
#include "preload/descriptors/track.h"
#include "preload/fill/serve.h"
#include "preload/process/proc.h"
#include "preload/promotion/promote.h"
#include "shared/sys.h"

/* Backing descriptors get numbers from this one on, unless the process's limit on descriptors is
 * lower. A program may expect that an open returns the lowest number that the program does not
 * use. So low numbers are left to the program. */
#define FIRST_NUMBER 500

/* One word for each descriptor number. If the descriptor has a backing descriptor, the word is 1 +
 * the number of the backing descriptor. If the descriptor is itself a backing descriptor, the word
 * is IS_BACKING | 1 + the number of the copy's descriptor. If the program closes a backing
 * descriptor, for example in a range of numbers, the library thereby finds and clears the word of
 * the copy's descriptor. */
#define IS_BACKING 0x80000000U
static uint32_t table[MONARCH_TRACKED] SELDOM;
/* For each backing descriptor: the lower half of its file's inode number. By a direct system call,
 * the program may have closed the backing descriptor and opened another file with the same number.
 * is_ours detects this by the inode number. */
static uint32_t inode[MONARCH_TRACKED] SELDOM;
uint32_t monarch_backing_count;

static unsigned highest;     /* highest index of `table` that was ever used */
static uint32_t posix_locks; /* 1: POSIX locks were requested on a backing descriptor */

static uint32_t get(int fd) {
    return (unsigned)fd < MONARCH_TRACKED ? __atomic_load_n(&table[fd], __ATOMIC_ACQUIRE) : 0;
}

static int change(int fd, uint32_t from, uint32_t to) {
    return __atomic_compare_exchange_n(&table[fd], &from, to, 0, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
}

static int backing_of(int fd) {
    uint32_t w = get(fd);
    return w && !(w & IS_BACKING) ? (int)w - 1 : -1;
}

static int is_ours(int backing) {
    struct stat st;
    return sys_fstat(backing, &st) == 0 && S_ISREG(st.st_mode) &&
           (uint32_t)st.st_ino == __atomic_load_n(&inode[backing], __ATOMIC_RELAXED) &&
           (sys_fcntl(backing, F_GETFL, 0) & O_ACCMODE) == O_RDONLY;
}

/* --- making and closing ----------------------------------------------------------------------- */

static int close_on_exec(int fd) { return sys_fcntl(fd, F_GETFD, 0) & FD_CLOEXEC; }

/* Duplicates the descriptor `of` to a high number. Returns -1 if no number is free, or if the new
 * number is too high for the table. */
static int high_duplicate(int of, int cloexec) {
    int command = cloexec ? F_DUPFD_CLOEXEC : F_DUPFD;
    int high = sys_fcntl(of, command, FIRST_NUMBER);
    /* the process's limit on descriptors is probably below FIRST_NUMBER, so a lower number is
     * used */
    if (high < 0)
        high = sys_fcntl(of, command, 0);
    if (high < MONARCH_TRACKED)
        return high < 0 ? -1 : high;
    monarch_close_unseen(high, of);
    return -1;
}

/* Records that `high` is the backing descriptor of `fd`. If another thread has changed the backing
 * descriptor of `fd` in the meantime, records nothing and returns 0. before: the backing
 * descriptor that `fd` has had until now, or -1. */
static int note(int fd, int high, int before) {
    struct stat st;
    sys_fstat(high, &st);
    __atomic_store_n(&inode[high], (uint32_t)st.st_ino, __ATOMIC_RELAXED);
    __atomic_fetch_add(&monarch_backing_count, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&table[high], IS_BACKING | (uint32_t)(fd + 1), __ATOMIC_RELEASE);
    unsigned seen = __atomic_load_n(&highest, __ATOMIC_RELAXED);
    unsigned end = (unsigned)(high > fd ? high : fd);
    while (end > seen && !__atomic_compare_exchange_n(&highest, &seen, end, 0, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED))
        ;
    int noted = change(fd, (uint32_t)before + 1, (uint32_t)high + 1);
    /* Clears the word of the descriptor that is not the backing descriptor of `fd` now: `before`
     * if `high` was recorded, otherwise `high`. */
    int left = noted ? before : high;
    if (left >= 0 && change(left, IS_BACKING | (uint32_t)(fd + 1), 0))
        __atomic_fetch_sub(&monarch_backing_count, 1, __ATOMIC_SEQ_CST);
    return noted;
}

/* Makes `high` the backing descriptor of `fd`. If another thread has already set a backing
 * descriptor, closes `high` instead. Returns the backing descriptor of `fd`. */
static int set_backing(int fd, int high) {
    if (note(fd, high, -1))
        return high;
    int known = backing_of(fd); /* the backing descriptor that another thread has set */
    monarch_close_unseen(high, known);
    return known;
}

/* Moves a backing descriptor to another number, because the program is about to use the old number
 * for another file (dup2). */
static void give_way(int backing, int fd) {
    int high = high_duplicate(backing, close_on_exec(fd));
    if (high >= 0 && note(fd, high, backing))
        monarch_close_unseen(backing, high);
    else if (high >= 0)
        monarch_close_unseen(high, backing);
    else
        /* if no number is free, the backing descriptor is closed, and the locks on the file are
         * released */
        monarch_backing_close_slow(fd);
}

/* Call this when `fd`, a descriptor of the copy, is about to be closed. Releases all POSIX locks
 * of the process on the source's file. Without the library, `fd` would refer to the source's file,
 * and the kernel would release the locks at this close. */
static void drop_locks(int fd) {
    struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    struct stat copy, other;
    if (sys_fstat(fd, &copy) != 0 || (copy.st_mode & 07777) != 0400)
        return;
    for (unsigned i = 0; i <= __atomic_load_n(&highest, __ATOMIC_RELAXED); i++)
        if (backing_of((int)i) >= 0 && sys_fstat((int)i, &other) == 0 &&
            other.st_ino == copy.st_ino && other.st_dev == copy.st_dev)
            sys_fcntl(backing_of((int)i), F_SETLK, (long)&all);
}

void monarch_backing_close_slow(int fd) {
    uint32_t w = get(fd);
    if ((!w && !__atomic_load_n(&posix_locks, __ATOMIC_RELAXED)) || !monarch_track_is_mine())
        return;
    if (!w && __atomic_load_n(&posix_locks, __ATOMIC_RELAXED))
        drop_locks(fd);
    if (!w)
        return;
    int other = (int)(w & ~IS_BACKING) - 1;
    if (!change(fd, w, 0))
        return;
    if (w & IS_BACKING) {
        change(other, (uint32_t)fd + 1, 0);
    } else if (change(other, IS_BACKING | (uint32_t)(fd + 1), 0) && is_ours(other)) {
        sys_close(other);
    }
    __atomic_fetch_sub(&monarch_backing_count, 1, __ATOMIC_SEQ_CST);
}

/* Returns whether dup3 will succeed. */
static int can_replace(int fd, int fresh, int flags) {
    struct rlimit limit;
    return fd != fresh && fresh >= 0 && !(flags & ~O_CLOEXEC) && sys_fcntl(fd, F_GETFD, 0) >= 0 &&
           sys6(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, (long)&limit, 0, 0) == 0 &&
           (rlim_t)fresh < limit.rlim_cur;
}

void monarch_backing_replace_slow(int fd, int fresh, int flags) {
    if (!can_replace(fd, fresh, flags))
        return;
    if (monarch_is_backing(fresh))
        give_way(fresh, (int)(get(fresh) & ~IS_BACKING) - 1);
    else
        monarch_backing_close_slow(fresh);
}

static int stays(int backing, unsigned first, unsigned last) {
    uint32_t w = get(backing), fd = (w & ~IS_BACKING) - 1;
    return (w & IS_BACKING) && (fd < first || fd > last) && is_ours(backing);
}

uint64_t monarch_backing_that_stays(uint64_t from, unsigned first, unsigned last) {
    unsigned end = __atomic_load_n(&highest, __ATOMIC_RELAXED);
    for (; from <= last && from <= end; from++)
        if (stays((int)from, first, last))
            return from;
    return (uint64_t)last + 1;
}

void monarch_backing_close_range(unsigned first, unsigned last) {
    unsigned end = __atomic_load_n(&highest, __ATOMIC_RELAXED);
    for (uint64_t fd = first; fd <= last && fd <= end && monarch_has_backing(); fd++)
        if (!stays((int)fd, first, last))
            monarch_backing_close_slow((int)fd);
}

void monarch_backing_flag_range(unsigned first, unsigned last) {
    unsigned end = __atomic_load_n(&highest, __ATOMIC_RELAXED);
    for (uint64_t fd = first; fd <= last && fd <= end; fd++)
        monarch_backing_flag_slow((int)fd, FD_CLOEXEC);
}

void monarch_backing_duplicate_slow(int fd, int fresh) {
    int backing = backing_of(fd);
    if (backing < 0 || fresh < 0 || fresh == fd || !monarch_track_is_mine())
        return;
    int high = fresh < MONARCH_TRACKED ? high_duplicate(backing, close_on_exec(fresh)) : -1;
    if (high >= 0)
        set_backing(fresh, high);
}

void monarch_backing_flag_slow(int fd, int flag) {
    int backing = backing_of(fd);
    if (backing >= 0 && monarch_track_is_mine())
        sys_fcntl(backing, F_SETFD, flag & FD_CLOEXEC);
}

/* --- earlier duplicates ----------------------------------------------------------------------- */

#define KCMP_FILE 0

struct duplicates {
    int of, by; /* by: the descriptor that the function `act` needs, or -1 */
    void (*act)(int fd, const struct duplicates *d);
};

static void if_duplicate(int fd, void *data) {
    const struct duplicates *d = data;
    long pid = sys_getpid();
    if (fd != d->of && sys6(SYS_kcmp, pid, pid, KCMP_FILE, d->of, fd, 0) == 0)
        d->act(fd, d);
}

/* Calls `act` for each duplicate of `fd`: any other descriptor of this process that refers to the
 * same open file. Calls `act` for none if the kernel cannot compare descriptors (kcmp). */
static void for_duplicates(int fd, void (*act)(int fd, const struct duplicates *d), int by) {
    struct duplicates d = {fd, by, act};
    monarch_for_descriptors(if_duplicate, &d);
}

static void share(int fd, const struct duplicates *d) { monarch_backing_duplicate_slow(d->of, fd); }

static void replace(int fd, const struct duplicates *d) {
    sys6(SYS_dup3, d->by, fd, close_on_exec(fd) ? O_CLOEXEC : 0, 0, 0, 0);
}

void monarch_backing_has_posix_locks(void) { __atomic_store_n(&posix_locks, 1, __ATOMIC_RELAXED); }

int monarch_is_backing(int fd) {
    return (get(fd) & IS_BACKING) && monarch_track_is_mine() && is_ours(fd);
}

/* --- functions for the interposed calls ------------------------------------------------------- */

/* Reserves a high number for a backing descriptor, and returns it. Opens `path` with O_PATH, and
 * duplicates the new descriptor to the high number. O_PATH is used because the close of such a
 * descriptor releases no locks. Fails, for example, if `path` no longer leads to the entry's file.
 * On failure, returns -1 or -2 like monarch_backing_fd. */
static int reserve(const char *path, int cloexec, const struct session *s,
                   const struct monarch_entry *e) {
    int place = sys_openat(AT_FDCWD, path, O_PATH | O_NOFOLLOW | O_CLOEXEC), high = -1;
    if (place < 0)
        return place == -ENOENT ? -1 : -2;
    if (monarch_is_still(place, s, e)) {
        high = high_duplicate(place, cloexec);
        high = high < 0 ? -2 : high;
    }
    sys_close(place);
    return high;
}

/* Opens the source file of the copy to which `fd` refers. Returns the new descriptor, which has a
 * high number. On failure, returns -1 or -2 like monarch_backing_fd. */
static int open_backing(int fd, const char *path, const struct session *s,
                        const struct monarch_entry *e) {
    int cloexec = close_on_exec(fd), high = reserve(path, cloexec, s, e);
    if (high < 0)
        return high;
    int flags = sys_fcntl(fd, F_GETFL, 0) & (O_NONBLOCK | O_LARGEFILE | O_NOATIME);
    int fresh = sys_openat(AT_FDCWD, path, flags | O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    int is_it = fresh >= 0 && monarch_is_still(fresh, s, e);
    is_it = is_it && sys6(SYS_dup3, fresh, high, cloexec ? O_CLOEXEC : 0, 0, 0, 0) == high;
    if (!is_it)
        sys_close(high);
    if (fresh >= 0)
        monarch_close_unseen(fresh, is_it ? high : -1);
    return is_it ? high : fresh >= 0 || fresh == -ENOENT || fresh == -ELOOP ? -1 : -2;
}

/* Returns the existing backing descriptor of `fd`, or a new one. On failure, returns -1 or -2 like
 * monarch_backing_fd. */
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
    int known = monarch_has_backing() ? backing_of(fd) : -1;
    if (known >= 0 && monarch_is_still(known, s, e))
        return known;
    /* If `known` is not -1 here, it belonged to an earlier descriptor with the number `fd`, whose
     * close the library has not seen. */
    if (known >= 0)
        monarch_backing_close_slow(fd);
    if (!monarch_source_path(s, c, e, path))
        return -1;
    int high = open_backing(fd, path, s, e);
    if (high < 0)
        return high;
    high = set_backing(fd, high);
    if (high < 0)
        return -2;
    for_duplicates(fd, share, -1);
    return high;
}

int monarch_backing_fd(int fd) {
    if (!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE) || fd < 0)
        return -1;
    int backing = find_or_open(fd);
    if (backing >= 0) {
        long at = sys_lseek(fd, 0, SEEK_CUR);
        if (at >= 0)
            sys_lseek(backing, at, SEEK_SET);
    }
    return backing;
}

static int is_one_thread(void) {
    struct stat st;
    return sys_fstatat(AT_FDCWD, "/proc/self/task", &st, 0) == 0 && st.st_nlink == 3;
}

static void become_source(int fd, int backing) {
    sys_lseek(backing, sys_lseek(fd, 0, SEEK_CUR), SEEK_SET);
    /* With several threads, the duplicates of `fd` are not replaced. Another thread could close a
     * duplicate and open another file with the same number, and the replacement would hit that
     * file. */
    if (is_one_thread())
        for_duplicates(fd, replace, backing);
    replace(fd, &(struct duplicates){.by = backing});
}

void monarch_backing_compare(int fd) {
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    const struct monarch_catalog *c;
    struct stat copy, now;
    int backing = backing_of(fd);
    const struct monarch_entry *e =
        backing >= 0 && s && sys_fstat(fd, &copy) == 0 ? monarch_behind_copy(&s, &c, &copy) : NULL;
    if (!e || sys_fstat(backing, &now) != 0 || now.st_ino != e->ino ||
        ((uint64_t)now.st_size == e->size &&
         monarch_time_ns(now.st_mtim.tv_sec, now.st_mtim.tv_nsec) == e->mtime_ns &&
         monarch_time_ns(now.st_ctim.tv_sec, now.st_ctim.tv_nsec) == e->ctime_ns))
        return;
    monarch_mark_changed(s->clients, now.st_dev, now.st_ino);
    become_source(fd, backing);
}

int monarch_become_source(int fd) {
    int backing = monarch_backing_fd(fd);
    if (backing >= 0) {
        monarch_backing_compare(fd);
        become_source(fd, backing);
    }
    return backing != -2;
}
