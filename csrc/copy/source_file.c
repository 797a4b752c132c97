#include "copy/source_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "copy/flow.h"
#include "shared/claims.h"
#include "shared/clock.h"
#include "shared/sys.h"

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x80 /* since Linux 6.14 */
#endif

/* --- limits ----------------------------------------------------------------------------------- */

/* Implements a rate limit of `per_s` bytes or operations a second. Reserves the next free span of
 * time for `n` of them, and returns the span's beginning. This may be up to 20 ms in the past, so
 * that threads which wake late do not lower the rate. Older unused time is lost. */
static uint64_t take_span(uint64_t *next_ns, uint64_t n, uint64_t per_s) {
    const uint64_t slack_ns = 20000000;
    uint64_t span = (uint64_t)((unsigned __int128)n * 1000000000 / per_s), now = monarch_now_ns();
    uint64_t next = __atomic_load_n(next_ns, __ATOMIC_RELAXED), begin;
    do
        begin = next + slack_ns < now ? now - slack_ns : next;
    while (!__atomic_compare_exchange_n(next_ns, &next, begin + span, 0, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
    return begin;
}

/* Sleeps until `when_ns`, or until the engine stops. If the rate is low, the sleep may be long. So
 * the thread wakes every 50 ms and looks at `stopping`. */
static void sleep_until(const struct monarch_engine *e, uint64_t when_ns) {
    for (uint64_t now;
         !__atomic_load_n(&e->stopping, __ATOMIC_RELAXED) && (now = monarch_now_ns()) < when_ns;) {
        uint64_t ns = when_ns - now < 50000000 ? when_ns - now : 50000000;
        struct timespec t = {0, (long)ns};
        nanosleep(&t, NULL);
    }
}

void monarch_acquire_rate(struct monarch_engine *e, uint64_t n) {
    uint64_t ops = __atomic_load_n(&e->ops_per_s, __ATOMIC_RELAXED);
    uint64_t bytes = __atomic_load_n(&e->bytes_per_s, __ATOMIC_RELAXED);
    if (ops)
        sleep_until(e, take_span(&e->next_op_ns, 1, ops));
    if (bytes && n)
        sleep_until(e, take_span(&e->next_byte_ns, n, bytes));
}

/* --- the file --------------------------------------------------------------------------------- */

static int64_t ns(struct statx_timestamp t) { return monarch_time_ns(t.tv_sec, t.tv_nsec); }

/* Reads the file's attributes; returns whether that succeeded. sync: AT_STATX_DONT_SYNC reads the
 * cached attributes, AT_STATX_FORCE_SYNC asks the source's server. */
static int attributes_of(int fd, int sync, struct statx *x) {
    unsigned mask = STATX_TYPE | STATX_INO | STATX_SIZE | STATX_MTIME | STATX_CTIME;
    return statx(fd, "", AT_EMPTY_PATH | sync, mask, x) == 0;
}

static int are_as_catalogued(const struct monarch_entry *e, const struct statx *x) {
    return S_ISREG(x->stx_mode) && x->stx_ino == e->ino && x->stx_size == e->size &&
           ns(x->stx_mtime) == e->mtime_ns && ns(x->stx_ctime) == e->ctime_ns;
}

static int is_as_catalogued(const struct monarch_entry *e, int fd, int sync) {
    struct statx x;
    return attributes_of(fd, sync, &x) && are_as_catalogued(e, &x);
}

uint64_t monarch_inode_of(int fd, uint64_t *dev) {
    struct statx x;
    if (!attributes_of(fd, AT_STATX_DONT_SYNC, &x) || !S_ISREG(x.stx_mode))
        return 0;
    *dev = makedev(x.stx_dev_major, x.stx_dev_minor);
    return x.stx_ino;
}

static int open_source(struct monarch_engine *e, const struct job *job, int *status) {
    monarch_acquire_rate(e, 0);
    int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    /* O_NOATIME keeps the access time at the source unchanged, but may be forbidden (EPERM). */
    int fd = openat(job->source_root, job->path, flags | O_NOATIME);
    if (fd < 0 && errno == EPERM)
        fd = openat(job->source_root, job->path, flags);
    if (fd < 0) {
        int is_gone = errno == ENOENT || errno == ELOOP;
        *status = is_gone ? MONARCH_SOURCE_CHANGED : MONARCH_SOURCE_ERROR;
        return -1;
    }
    /* Usually, the attributes that the kernel cached at the open are enough, because the server is
     * asked after the last read. But some file systems do not cache a file's size at the open. So
     * if the cached attributes differ from the catalog's, ask the server now. */
    if (!is_as_catalogued(&job->entry, fd, AT_STATX_DONT_SYNC) &&
        !is_as_catalogued(&job->entry, fd, AT_STATX_FORCE_SYNC)) {
        close(fd);
        *status = MONARCH_SOURCE_CHANGED;
        errno = 0;
        return -1;
    }
    /* Turns the kernel's read-ahead off, because units may be read in any sequence: read-ahead
     * would also request units that were already read. */
    if (job->entry.size > MONARCH_UNIT)
        posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    return fd;
}

int monarch_open_source(struct monarch_engine *e, const struct job *job, int *status) {
    struct visit v = monarch_visit(e, MONARCH_ENDPOINT_OF_SOURCES);
    int fd = open_source(e, job, status), error = errno;
    monarch_leave(&v, 0);
    errno = error;
    return fd;
}

void monarch_note_source(struct monarch_engine *e) {
    __atomic_store_n(&e->fills->source_ns, monarch_now_ns(), __ATOMIC_RELAXED);
}

int monarch_source_is_unchanged(struct job *job, int fd) {
    if (!is_as_catalogued(&job->entry, fd, AT_STATX_FORCE_SYNC))
        return monarch_fail(job, MONARCH_SOURCE_CHANGED, 0);
    return 0;
}

/* Returns whether the kernel can safely drop the pages that a read has loaded (RWF_DONTCACHE).
 * Linux 6.14 and 6.15 cannot: they may drop a page to which another process has written since the
 * read. */
int monarch_can_drop_behind(void) {
    struct utsname system;
    unsigned major, minor;
    return uname(&system) == 0 && sscanf(system.release, "%u.%u", &major, &minor) == 2 &&
           (major > 6 || (major == 6 && minor >= 16));
}

int monarch_drops_behind(const struct monarch_engine *e, const struct job *job) {
    uint32_t kept = __atomic_load_n(&e->kept_sources, __ATOMIC_RELAXED);
    return !(kept >> job->entry.source & 1);
}

/* --- how fast the sources are ----------------------------------------------------------------- */

/* Time limit [ns] for the open and the read of a small file together. If they take less time, the
 * file was probably on a local disk or in the page cache. On a network file system they take
 * longer, because the server is asked twice. */
#define FAST_NS 300000
/* Time limit [ns] for the read of a small file. If the read takes less time, the page cache
 * probably contained the bytes already, because of an earlier read or of the open. */
#define CACHED_NS 150000
/* Fractions of a source's recent files (see `note`) are stored in units of 1 / SHARE_ALL. */
#define SHARE_ALL 1024U
/* After this number of fills from a source, the source's bit in `fast_sources` is reliable. */
#define JUDGED 32U
#define SHARE_STEP 32U /* a fraction is a running mean over about this many files */

/* Adds one file to *mean, the fraction of a source's recent files for which a condition is true.
 * is_true: whether it is true for this file. Sets the source's bit in *bits if the fraction exceeds
 * one half, else clears it. If two threads call this at the same time, one of the two files may not
 * be counted. */
static void note(uint32_t *mean, uint32_t *bits, unsigned source, int is_true) {
    uint32_t share = __atomic_load_n(mean, __ATOMIC_RELAXED), bit = 1U << source;
    share = share - share / SHARE_STEP + (is_true ? SHARE_ALL / SHARE_STEP : 0);
    __atomic_store_n(mean, share, __ATOMIC_RELAXED);
    uint32_t is_set = share > SHARE_ALL / 2 ? bit : 0;
    if ((__atomic_load_n(bits, __ATOMIC_RELAXED) & bit) == is_set)
        return;
    if (is_set)
        __atomic_fetch_or(bits, bit, __ATOMIC_RELAXED);
    else
        __atomic_fetch_and(bits, ~bit, __ATOMIC_RELAXED);
}

void monarch_note_speed(struct monarch_engine *e, unsigned source, uint64_t ns) {
    note(&e->fast[source], &e->control->fast_sources, source, ns < FAST_NS);
    if (__atomic_add_fetch(&e->judged[source], 1, __ATOMIC_RELAXED) == JUDGED)
        __atomic_fetch_or(&e->control->judged_sources, 1U << source, __ATOMIC_RELAXED);
}

void monarch_note_pages(struct monarch_engine *e, unsigned source, int are_gone) {
    note(&e->pageless[source], &e->control->pageless_sources, source, are_gone);
}

/* --- direct I/O ------------------------------------------------------------------------------- */

/* For a file of at least this many bytes, O_DIRECT saves more processor time than its two calls of
 * fcntl take. */
#define DIRECT_BYTES 16384
/* While a source's files are read with O_DIRECT, every PROBED-th file is read through the page
 * cache instead. If most of these files are in the page cache already, all files of the source are
 * read through the page cache again. */
#define PROBED 32
/* The length of a read with O_DIRECT must be a multiple of the disk's block size. A block has at
 * most this many bytes. */
#define DIRECT_ROUND 4096

/* Returns whether this read of `n` bytes may use O_DIRECT. It must read a whole file of one unit
 * and of at least DIRECT_BYTES, which is not in use. All other files are read through the page
 * cache: a file in use may be in it already, and programs may read a file of several units while
 * the fill reads it. */
static int may_read_directly(const struct fill *f, uint64_t n) {
    const struct job *job = f->job;
    return f->units == 1 && n == job->entry.size && n >= DIRECT_BYTES && !job->result.in_use;
}

/* Returns whether to use O_DIRECT now. The caller has checked that the file may be read in this
 * way. */
static int is_direct_better(struct monarch_engine *e, unsigned source) {
    uint32_t sources = __atomic_load_n(&e->awaited_sources, __ATOMIC_RELAXED) &
                       ~__atomic_load_n(&e->buffered_sources, __ATOMIC_RELAXED);
    return sources >> source & 1 &&
           __atomic_add_fetch(&e->awaited_files[source], 1, __ATOMIC_RELAXED) % PROBED;
}

/* Reads a whole file of `n` bytes with O_DIRECT. `buffer` is page-aligned and has MONARCH_CHUNK
 * bytes. Returns whether all bytes were read. Returns 0 if O_DIRECT is not supported here, if the
 * file is now shorter, or if the source has failed. */
static int read_directly(int fd, char *buffer, uint64_t n) {
    size_t whole = (n + DIRECT_ROUND - 1) / DIRECT_ROUND * DIRECT_ROUND;
    int flags = fcntl(fd, F_GETFL);
    ssize_t got = -1;
    if (flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0) {
        got = pread(fd, buffer, whole, 0);
        fcntl(fd, F_SETFL, flags);
    }
    return got >= (ssize_t)n;
}

void monarch_engine_direct_io(struct monarch_engine *e, int may) {
    __atomic_store_n(&e->buffered_sources, may ? 0 : UINT32_MAX, __ATOMIC_RELAXED);
}

/* --- reads through the page cache ------------------------------------------------------------- */

ssize_t monarch_read_fully(int fd, char *buf, size_t n, off_t at) {
    size_t done = 0;
    while (done < n) {
        ssize_t r = pread(fd, buf + done, n - done, at + (off_t)done);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return -errno;
        if (r == 0)
            break;
        done += (size_t)r;
    }
    return (ssize_t)done;
}

/* Reads with RWF_DONTCACHE, so that the kernel drops the pages that this read loads. Otherwise, the
 * pages of many small files would fill the memory, and finding free pages would take as long as
 * copying. POSIX_FADV_DONTNEED after each file is worse: it may wait for every core, and also drops
 * pages that other processes have loaded. */
ssize_t monarch_read_source(struct monarch_engine *e, const struct job *job, int fd, char *buf,
                            size_t n, off_t at) {
    size_t done = 0;
    int refused = 0;
    while (done < n && !refused && monarch_drops_behind(e, job)) {
        struct iovec part = {buf + done, n - done};
        long r = sys6(SYS_preadv2, fd, (long)&part, 1, at + (off_t)done, 0, RWF_DONTCACHE);
        if (r == 0)
            return (ssize_t)done;
        if (r > 0)
            done += (size_t)r;
        refused = r < 0 && r != -EINTR;
    }
    ssize_t r = monarch_read_fully(fd, buf + done, n - done, at + (off_t)done);
    if (refused && r >= 0) /* this file system does not support the flag */
        __atomic_fetch_or(&e->kept_sources, 1U << job->entry.source, __ATOMIC_RELAXED);
    return r < 0 ? r : r + (ssize_t)done;
}

/* --- the descriptor of a fill ----------------------------------------------------------------- */

int monarch_is_handed(const struct job *job) {
    return __atomic_load_n(&job->handed, __ATOMIC_ACQUIRE) >= 0;
}

/* Returns whether a program's descriptor can be used: it must be open for reading only, without
 * O_DIRECT, and its file must be the order's file. */
static int is_usable(const struct monarch_engine *e, const struct job *job, int fd) {
    uint64_t dev = e->control->source[job->entry.source].dev;
    int flags = fcntl(fd, F_GETFL);
    struct statx x;
    return flags >= 0 && (flags & (O_ACCMODE | O_PATH | O_DIRECT)) == O_RDONLY &&
           attributes_of(fd, AT_STATX_DONT_SYNC, &x) &&
           makedev(x.stx_dev_major, x.stx_dev_minor) == dev && are_as_catalogued(&job->entry, &x);
}

void monarch_close_source(struct monarch_engine *e, struct job *job, int fd) {
    close(fd);
    if (job->handed == fd) {
        job->handed = -1;
        monarch_end_claim(e->clients, job->claim);
    }
}

void monarch_close_handed(struct monarch_engine *e, struct job *job) {
    if (job->handed >= 0)
        monarch_close_source(e, job, job->handed);
}

int monarch_take_source(struct monarch_engine *e, struct job *job, int *status) {
    if (job->handed >= 0 && is_usable(e, job, job->handed))
        return job->handed;
    monarch_close_handed(e, job);
    return monarch_open_source(e, job, status);
}

int monarch_source_of(struct monarch_engine *e, struct fill *f, int *status) {
    int there = __atomic_load_n(&f->from, __ATOMIC_ACQUIRE);
    if (there >= 0)
        return there;
    int fd = monarch_open_source(e, f->job, status);
    /* If several threads need the source's file at the same time, each of them opens it. Only one
     * of the descriptors is kept. */
    if (fd >= 0 &&
        !__atomic_compare_exchange_n(&f->from, &there, fd, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        close(fd);
        return there;
    }
    return fd;
}

static void note_read(struct monarch_engine *e, uint64_t n) {
    __atomic_fetch_add(&e->counts[MONARCH_BYTES], n, __ATOMIC_RELAXED);
    monarch_note_source(e);
}

/* Reads from a program's descriptor. What the program has just read usually comes from the page
 * cache without a wait. If this thread slept during the read, it waited for the source. Only then
 * do the bytes count as read from the source. */
static ssize_t read_handed(struct monarch_engine *e, struct fill *f, int from, char *buffer,
                           uint64_t n, uint64_t at) {
    struct rusage before, after;
    getrusage(RUSAGE_THREAD, &before);
    ssize_t got = monarch_read_fully(from, buffer, n, (off_t)at);
    getrusage(RUSAGE_THREAD, &after);
    if (after.ru_nvcsw != before.ru_nvcsw && got == (ssize_t)n) {
        __atomic_store_n(&f->lacks_pages, 1, __ATOMIC_RELAXED);
        note_read(e, n);
    }
    return got;
}

/* Replaces `from`, a handed-over descriptor that must be closed now (monarch_is_recalled). Opens
 * the file at the source anew, and moves the new descriptor to the number `from`. The number must
 * stay the same, because other threads may be reading from it. Returns 0, or -1 if the open failed,
 * with the reason in *status and errno. */
static int give_back(struct monarch_engine *e, struct fill *f, int from, int *status) {
    uint64_t began_ns = monarch_now_ns();
    int own = monarch_open_source(e, f->job, status), handed = from;
    if (own < 0)
        return -1;
    /* Only one thread works on a fill of one unit, so source_ns needs no lock. */
    if (f->units == 1)
        f->source_ns += monarch_now_ns() - began_ns;
    if (__atomic_compare_exchange_n(&f->job->handed, &handed, -1, 0, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST)) {
        while (dup3(own, from, O_CLOEXEC) < 0 && (errno == EINTR || errno == EBUSY))
            ;
        monarch_end_claim(e->clients, f->job->claim);
    }
    close(own);
    return 0;
}

static ssize_t read_from_source(struct monarch_engine *e, struct fill *f, int from, char *buffer,
                                uint64_t n, uint64_t at) {
    struct visit v = monarch_visit(e, MONARCH_ENDPOINT_OF_SOURCES);
    unsigned source = f->job->entry.source;
    monarch_acquire_rate(e, n);
    uint64_t began_ns = monarch_now_ns();
    int may = may_read_directly(f, n);
    int is_tried = may && is_direct_better(e, source);
    int is_direct = is_tried && read_directly(from, buffer, n);
    ssize_t got =
        is_direct ? (ssize_t)n : monarch_read_source(e, f->job, from, buffer, n, (off_t)at);
    uint64_t took_ns = monarch_now_ns() - began_ns;
    if (f->units == 1)
        f->source_ns += took_ns;
    if (may && !is_direct)
        note(&e->awaited[source], &e->awaited_sources, source, took_ns >= CACHED_NS);
    monarch_leave(&v, got > 0 ? (uint64_t)got : 0);
    if (got == (ssize_t)n)
        note_read(e, n);
    if (is_tried && !is_direct && got == (ssize_t)n) /* only O_DIRECT has failed */
        __atomic_fetch_or(&e->buffered_sources, 1U << source, __ATOMIC_RELAXED);
    return got;
}

int monarch_give_back_recalled(struct monarch_engine *e, struct fill *f, int from, int *status) {
    if (!monarch_is_handed(f->job) ||
        !monarch_is_recalled(e->clients, f->job->claim, monarch_now_ns()))
        return 0;
    return give_back(e, f, from, status);
}

ssize_t monarch_read_part(struct monarch_engine *e, struct fill *f, int from, char *buffer,
                          uint64_t n, uint64_t at) {
    return monarch_is_handed(f->job) ? read_handed(e, f, from, buffer, n, at)
                                     : read_from_source(e, f, from, buffer, n, at);
}
