/* Orders other than fills: check, compare, drop and page in. This file also has the functions that
 * these orders share with fills. */
#include "copy/job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "copy/flow.h"
#include "copy/state.h"
#include "serving/serving.h"
#include "shared/buffer.h"
#include "shared/clock.h"
#include "shared/sys.h"
#include "shared/xxh3.h"

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x80 /* since Linux 6.14 */
#endif

/* The part of a copy that one call reads into memory [bytes]. */
#define PART_BYTES (4 * MONARCH_CHUNK)

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

int monarch_write_fully(int fd, const char *buf, size_t n, off_t at) {
    for (size_t done = 0; done < n;) {
        ssize_t r = pwrite(fd, buf + done, n - done, at + (off_t)done);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return r < 0 ? -errno : -EIO;
        done += (size_t)r;
    }
    return 0;
}

int monarch_fail(struct job *job, int status, int error) {
    job->result.status = (uint32_t)status;
    job->result.error = error;
    return -1;
}

int monarch_tier_status(int error) {
    return error == ENOSPC || error == EDQUOT || error == ENOMEM ? MONARCH_TIER_FULL
                                                                 : MONARCH_TIER_ERROR;
}

void monarch_copy_name(const struct job *job, char name[MONARCH_COPY_NAME + 4]) {
    uint64_t number = job->result.copy;
    for (int i = MONARCH_COPY_NAME; i--; number >>= 4)
        name[i] = "0123456789abcdef"[number & 15];
    name[MONARCH_COPY_NAME] = 0;
}

void monarch_remove_copy(struct job *job) {
    char name[MONARCH_COPY_NAME + 4];
    monarch_copy_name(job, name);
    /* It is no error if the copy is gone already, or if a directory, which is not Monarch's, has
     * its name. */
    if (unlinkat(job->copies, name, 0) != 0 && errno != ENOENT && errno != EISDIR)
        job->result.left = errno;
}

/* --- limits ----------------------------------------------------------------------------------- */

/* Reserves the next free span of time for `n` bytes or operations, at `per_s` each second. Returns
 * when the span begins. Unused time is lost, except for the last 20 ms, which compensate for
 * threads that wake late. */
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

/* Sleeps in short steps, so that a low rate does not delay the end of an engine that stops. */
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

/* --- the source file -------------------------------------------------------------------------- */

static int64_t ns(struct statx_timestamp t) { return monarch_time_ns(t.tv_sec, t.tv_nsec); }

/* sync: AT_STATX_DONT_SYNC, or AT_STATX_FORCE_SYNC to ask the source's server. */
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

int monarch_is_usable(const struct monarch_engine *e, const struct job *job, int fd) {
    uint64_t dev = e->control->source[job->entry.source].dev;
    int flags = fcntl(fd, F_GETFL);
    struct statx x;
    return flags >= 0 && (flags & (O_ACCMODE | O_PATH | O_DIRECT)) == O_RDONLY &&
           attributes_of(fd, AT_STATX_DONT_SYNC, &x) &&
           makedev(x.stx_dev_major, x.stx_dev_minor) == dev && are_as_catalogued(&job->entry, &x);
}

static int open_source(struct monarch_engine *e, const struct job *job, int *status) {
    monarch_acquire_rate(e, 0);
    int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    /* Reading must change nothing at the source, not even the access time, where O_NOATIME is
     * permitted. */
    int fd = openat(job->source_root, job->path, flags | O_NOATIME);
    if (fd < 0 && errno == EPERM)
        fd = openat(job->source_root, job->path, flags);
    if (fd < 0) {
        int is_gone = errno == ENOENT || errno == ELOOP;
        *status = is_gone ? MONARCH_SOURCE_CHANGED : MONARCH_SOURCE_ERROR;
        return -1;
    }
    /* The attributes that the kernel got at the open are enough here, because the server is asked
     * again after the last byte. If they differ from the catalog's, ask the server now: some file
     * systems know the size only then. */
    if (!is_as_catalogued(&job->entry, fd, AT_STATX_DONT_SYNC) &&
        !is_as_catalogued(&job->entry, fd, AT_STATX_FORCE_SYNC)) {
        close(fd);
        *status = MONARCH_SOURCE_CHANGED;
        errno = 0;
        return -1;
    }
    /* Turns read-ahead off: it would request from the source bytes of units that were already
     * read. */
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

int monarch_source_is_unchanged(struct job *job, int fd) {
    if (!is_as_catalogued(&job->entry, fd, AT_STATX_FORCE_SYNC))
        return monarch_fail(job, MONARCH_SOURCE_CHANGED, 0);
    return 0;
}

/* Returns whether the kernel can safely drop the pages that a read brought (RWF_DONTCACHE). Linux
 * 6.14 and 6.15 have the flag, but drop a page without checking whether another process has written
 * to it meanwhile. */
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

/* Has the kernel drop the pages that each read brings. If they stayed, the pages of many small
 * files would fill the memory, and finding free pages would take as long as copying. posix_fadvise
 * after each file is no alternative: it may wait for all cores, and would also drop pages that
 * other processes have read, which this flag leaves alone. */
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

/* --- looking through a file ------------------------------------------------------------------- */

/* Computes the checksum that a fill records: the XXH3-64 of the file's block sums, each of which is
 * the XXH3-64 of one block. */
static int sum_of(struct monarch_engine *e, struct job *job, int fd, char *buffer, uint64_t *sum) {
    uint64_t size = job->entry.size, block = e->block_bytes, blocks = (size + block - 1) / block;
    int of_source = job->result.kind == MONARCH_COMPARE;
    uint64_t *sums = malloc((blocks ? blocks : 1) * sizeof *sums);
    int r = sums ? 0 : monarch_fail(job, MONARCH_TIER_ERROR, ENOMEM);
    for (uint64_t b = 0, at = 0; r == 0 && b < blocks; b++) {
        struct xxh3_stream stream;
        uint64_t end = size - at < block ? size : at + block;
        monarch_xxh3_begin(&stream);
        for (; r == 0 && at < end;) {
            uint64_t n = end - at < MONARCH_CHUNK ? end - at : MONARCH_CHUNK;
            if (of_source)
                monarch_acquire_rate(e, n);
            ssize_t got = of_source ? monarch_read_source(e, job, fd, buffer, n, (off_t)at)
                                    : monarch_read_fully(fd, buffer, n, (off_t)at);
            if (got < 0)
                r = monarch_fail(job, MONARCH_SOURCE_ERROR, (int)-got);
            else if ((uint64_t)got < n)
                /* the file is shorter than before */
                r = monarch_fail(job, MONARCH_SOURCE_CHANGED, 0);
            else if (__atomic_load_n(&e->stopping, __ATOMIC_RELAXED))
                r = monarch_fail(job, MONARCH_ABANDONED, 0);
            else
                monarch_xxh3_add(&stream, buffer, n);
            if (r == 0 && of_source)
                __atomic_fetch_add(&e->counts[MONARCH_BYTES], n, __ATOMIC_RELAXED);
            at += n;
        }
        sums[b] = monarch_xxh3_end(&stream);
    }
    if (r == 0) {
        *sum = monarch_xxh3((const char *)sums, blocks * sizeof *sums);
        job->result.bytes = size;
    }
    free(sums);
    return r;
}

static int open_copy(const struct job *job) {
    char name[MONARCH_COPY_NAME + 4];
    monarch_copy_name(job, name);
    return openat(job->copies, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
}

static void check(struct monarch_engine *e, struct job *job, char *buffer) {
    struct stat st;
    int fd = open_copy(job);
    if (fd < 0 || fstat(fd, &st) != 0) {
        monarch_fail(job, errno == ENOENT ? MONARCH_DAMAGED : MONARCH_TIER_ERROR, errno);
    } else if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != job->entry.size) {
        monarch_fail(job, MONARCH_DAMAGED, 0);
    } else if (sum_of(e, job, fd, buffer, &job->result.sum) != 0) {
        if (job->result.status != MONARCH_ABANDONED)
            job->result.status = MONARCH_DAMAGED; /* a copy that cannot be read counts as damaged */
    } else if (job->result.sum != job->expected_sum) {
        monarch_fail(job, MONARCH_DAMAGED, 0);
    } else {
        job->result.status = MONARCH_DONE;
        job->result.copy_ino = st.st_ino;
        job->result.copy_bytes = (uint64_t)st.st_blocks * 512;
    }
    if (fd >= 0)
        close(fd);
}

static void compare(struct monarch_engine *e, struct job *job, char *buffer) {
    int status, fd = monarch_open_source(e, job, &status);
    if (fd < 0) {
        monarch_fail(job, status, errno);
        return;
    }
    if (sum_of(e, job, fd, buffer, &job->result.sum) == 0 &&
        monarch_source_is_unchanged(job, fd) == 0) {
        if (job->result.sum == job->expected_sum)
            job->result.status = MONARCH_DONE;
        else
            monarch_fail(job, MONARCH_DAMAGED, 0);
    }
    close(fd);
}

static void drop(struct monarch_engine *e, struct job *job) {
    monarch_holdings_sums(__atomic_load_n(&e->holdings, __ATOMIC_ACQUIRE), job->result.copy, NULL,
                          NULL, 0);
    monarch_remove_copy(job);
    job->result.status = MONARCH_DONE;
}

/* Returns whether all pages of a chunk are in memory, without touching them. */
static int is_cached(int fd, uint64_t at, uint64_t n) {
    unsigned char pages[MONARCH_CHUNK / MONARCH_PAGE_BYTES] = {0};
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), count = (n + page - 1) / page;
    void *map = mmap(NULL, n, PROT_READ, MAP_SHARED, fd, (off_t)at);
    if (map == MAP_FAILED)
        return 0;
    int known = mincore(map, n, pages) == 0;
    munmap(map, n);
    for (uint64_t i = 0; known && i < count; i++)
        known = pages[i] & 1;
    return known;
}

/* Reads the next part of a copy into memory. Between parts, the thread does more urgent work. The
 * part is really read instead of requested by read-ahead, because the kernel shortens such requests
 * at will. So the number of threads bounds the parts that are read at a time. */
static void page_in(struct job *job, char *buffer) {
    uint64_t size = job->entry.size, end = job->result.bytes + PART_BYTES;
    int fd = open_copy(job);
    if (fd < 0) {
        monarch_fail(job, MONARCH_TIER_ERROR, errno);
        return;
    }
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    /* this read does not count as a use of the pages (Linux 6.3) */
    posix_fadvise(fd, 0, 0, POSIX_FADV_NOREUSE);
    end = end < size ? end : size;
    while (job->result.bytes < end && job->result.error == 0) {
        uint64_t at = job->result.bytes, left = end - at;
        uint64_t n = left < MONARCH_CHUNK ? left : MONARCH_CHUNK;
        ssize_t got = (ssize_t)n;
        if (!is_cached(fd, at, n))
            got = monarch_read_fully(fd, buffer, n, (off_t)at);
        if (got <= 0)
            monarch_fail(job, MONARCH_TIER_ERROR, got < 0 ? (int)-got : EIO);
        else
            job->result.bytes += (uint64_t)got;
    }
    close(fd);
    if (job->result.bytes == size)
        job->result.status = MONARCH_DONE;
}

void monarch_do_job(struct monarch_engine *e, struct job *job, char *buffer) {
    if (job->result.kind == MONARCH_CHECK)
        check(e, job, buffer);
    else if (job->result.kind == MONARCH_COMPARE)
        compare(e, job, buffer);
    else if (job->result.kind == MONARCH_PAGE_IN)
        page_in(job, buffer);
    else
        drop(e, job);
}

uint64_t monarch_xxh3_of(const char *data, uint64_t len) { return monarch_xxh3(data, len); }

int monarch_sum_file(const char *path, uint64_t block_bytes, uint64_t *sum, uint64_t *bytes) {
    struct monarch_engine e = {.block_bytes = block_bytes};
    struct job job;
    struct stat st;
    char *buffer = monarch_new_buffer(MONARCH_CHUNK);
    memset(&job, 0, sizeof job);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    int r = fd < 0 || !buffer || fstat(fd, &st) != 0 ? -errno : 0;
    if (r == 0) {
        job.entry.size = *bytes = (uint64_t)st.st_size;
        if (sum_of(&e, &job, fd, buffer, sum) != 0)
            r = job.result.error ? -job.result.error : -EIO;
    }
    if (fd >= 0)
        close(fd);
    free(buffer);
    return r;
}
