/* One order: fill a copy, check one, compare one with its source, drop one. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine.h"
#include "xxh3.h"

/* Reads up to `n` bytes at `at`; fewer only at the end of the file. */
static ssize_t read_fully(int fd, char *buf, size_t n, off_t at) {
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

static int write_fully(int fd, const char *buf, size_t n, off_t at) {
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

static int fail(struct job *job, int status, int error) {
    job->result.status = (uint32_t)status;
    job->result.error = error;
    return -1;
}

static int tier_status(int error) {
    return error == ENOSPC || error == EDQUOT || error == ENOMEM ? MONARCH_TIER_FULL
                                                                 : MONARCH_TIER_ERROR;
}

/* --- checksums: XXH3-64 of every block, and of the block sums -------------------------------- */

struct sums {
    struct xxh3_stream stream;
    uint64_t block_bytes, in_block, count, room;
    uint64_t *of_block;
};

static int end_block(struct sums *s) {
    if (s->count == s->room) {
        uint64_t room = s->room ? s->room * 2 : 4;
        uint64_t *more = realloc(s->of_block, room * sizeof *more);
        if (!more)
            return -1;
        s->of_block = more;
        s->room = room;
    }
    s->of_block[s->count++] = monarch_xxh3_end(&s->stream);
    monarch_xxh3_begin(&s->stream);
    s->in_block = 0;
    return 0;
}

static int add_bytes(struct sums *s, const char *data, size_t n) {
    while (n) {
        size_t part = s->block_bytes - s->in_block < n ? s->block_bytes - s->in_block : n;
        monarch_xxh3_add(&s->stream, data, part);
        s->in_block += part;
        data += part;
        n -= part;
        if (s->in_block == s->block_bytes && end_block(s) != 0)
            return -1;
    }
    return 0;
}

static int end_sums(struct sums *s, uint64_t *sum) {
    if (s->in_block && end_block(s) != 0)
        return -1;
    *sum = monarch_xxh3(s->of_block, s->count * sizeof *s->of_block);
    return 0;
}

static void begin_sums(struct sums *s, uint64_t block_bytes) {
    memset(s, 0, sizeof *s);
    s->block_bytes = block_bytes;
    monarch_xxh3_begin(&s->stream);
}

/* --- the source file -------------------------------------------------------------------------- */

static int64_t ns(struct timespec t) { return t.tv_sec * 1000000000LL + t.tv_nsec; }

static int is_as_catalogued(const struct monarch_entry *e, const struct stat *st) {
    return S_ISREG(st->st_mode) && st->st_ino == e->ino && (uint64_t)st->st_size == e->size &&
           ns(st->st_mtim) == e->mtime_ns && ns(st->st_ctim) == e->ctime_ns;
}

static int open_source(struct job *job) {
    struct stat st;
    int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    /* Reading changes nothing at the source, its access time included, where we may say so. */
    int fd = openat(job->source_root, job->path, flags | O_NOATIME);
    if (fd < 0 && errno == EPERM)
        fd = openat(job->source_root, job->path, flags);
    if (fd < 0)
        return fail(
            job, errno == ENOENT || errno == ELOOP ? MONARCH_SOURCE_CHANGED : MONARCH_SOURCE_ERROR,
            errno);
    if (fstat(fd, &st) != 0 || !is_as_catalogued(&job->entry, &st)) {
        close(fd);
        return fail(job, MONARCH_SOURCE_CHANGED, 0);
    }
    if (job->entry.size > MONARCH_CHUNK)
        posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return fd;
}

/* --- the copy --------------------------------------------------------------------------------- */

static void copy_name(const struct job *job, char *name) {
    snprintf(name, MONARCH_COPY_NAME + 4, "%0*llx", MONARCH_COPY_NAME,
             (unsigned long long)job->result.copy);
}

/* Blocks are reserved before the first is written: a full tier is seen here, not half way. What is
 * written in one go needs no reservation, which would cost more than the write. */
static int create_copy(struct job *job, const char *name) {
    int fd = openat(job->copies, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400);
    if (fd < 0)
        return fail(job, tier_status(errno), errno);
    if (job->entry.size > MONARCH_CHUNK && fallocate(fd, 0, 0, (off_t)job->entry.size) != 0 &&
        errno != EOPNOTSUPP && errno != ENOSYS) {
        int error = errno;
        close(fd);
        return fail(job, tier_status(error), error);
    }
    return fd;
}

/* Write-back of a block starts when it is written and is awaited one block later: dirty pages
 * never pile up beyond two blocks a thread. */
static void start_write_back(int fd, uint64_t done, uint64_t block) {
    if (done % block || !done)
        return;
    sync_file_range(fd, (off_t)(done - block), (off_t)block, SYNC_FILE_RANGE_WRITE);
    if (done >= 2 * block)
        sync_file_range(fd, (off_t)(done - 2 * block), (off_t)block,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                            SYNC_FILE_RANGE_WAIT_AFTER);
}

static int move_bytes(struct monarch_engine *e, struct job *job, int from, int to, char *buffer,
                      struct sums *sums) {
    uint64_t size = job->entry.size, done = 0;
    while (done < size) {
        uint64_t left_of_block = e->block_bytes - done % e->block_bytes;
        uint64_t n = size - done < MONARCH_CHUNK ? size - done : MONARCH_CHUNK;
        n = n < left_of_block ? n : left_of_block;
        ssize_t got = read_fully(from, buffer, n, (off_t)done);
        if (got < 0)
            return fail(job, MONARCH_SOURCE_ERROR, (int)-got);
        if ((uint64_t)got < n)
            return fail(job, MONARCH_SOURCE_CHANGED, 0); /* it has shrunk */
        if (job->result.kind != MONARCH_CHECK)
            __atomic_fetch_add(&e->bytes, n, __ATOMIC_RELAXED);
        int error = to < 0 ? 0 : write_fully(to, buffer, n, (off_t)done);
        if (error)
            return fail(job, tier_status(-error), -error);
        if (add_bytes(sums, buffer, n) != 0)
            return fail(job, MONARCH_TIER_ERROR, ENOMEM);
        done += n;
        if (to >= 0)
            start_write_back(to, done, e->block_bytes);
        if (__atomic_load_n(&e->stopping, __ATOMIC_RELAXED))
            return fail(job, MONARCH_ABANDONED, 0);
    }
    job->result.bytes = done;
    return 0;
}

/* The same file, unchanged, before the first byte and after the last: only then do the bytes
 * between belong together. */
static int source_is_unchanged(struct job *job, int fd) {
    struct stat st;
    if (fstat(fd, &st) != 0 || !is_as_catalogued(&job->entry, &st))
        return fail(job, MONARCH_SOURCE_CHANGED, 0);
    return 0;
}

static int close_copy(struct job *job, int fd) {
    struct stat st;
    int error = fstat(fd, &st) != 0 ? errno : 0;
    if (close(fd) != 0 && !error)
        error = errno;
    if (error)
        return fail(job, tier_status(error), error);
    job->result.copy_ino = st.st_ino;
    job->result.copy_bytes = (uint64_t)st.st_blocks * 512;
    return 0;
}

static void fill(struct monarch_engine *e, struct job *job, char *buffer) {
    char name[MONARCH_COPY_NAME + 4];
    struct sums sums;
    int from = open_source(job);
    if (from < 0)
        return;
    copy_name(job, name);
    int to = create_copy(job, name);
    begin_sums(&sums, e->block_bytes);
    if (to >= 0) {
        int r = move_bytes(e, job, from, to, buffer, &sums);
        if (r == 0)
            r = source_is_unchanged(job, from);
        if (r == 0 && end_sums(&sums, &job->result.sum) != 0)
            r = fail(job, MONARCH_TIER_ERROR, ENOMEM);
        if (r == 0)
            r = close_copy(job, to);
        else
            close(to);
        if (r == 0)
            job->result.status = MONARCH_DONE;
    }
    /* Nobody else holds the number, so that what has its name can only be our unfinished file. */
    if (job->result.status != MONARCH_DONE && to >= 0)
        unlinkat(job->copies, name, 0);
    /* The kernel drains every core's page lists for this, which a small file does not repay. */
    if (job->entry.size > MONARCH_CHUNK)
        posix_fadvise(from, 0, 0, POSIX_FADV_DONTNEED);
    close(from);
    job->result.block_sums = sums.of_block;
    job->result.blocks = sums.count;
}

/* Reads a file through its checksum. */
static int sum_of(struct monarch_engine *e, struct job *job, int fd, char *buffer, uint64_t *sum) {
    struct sums sums;
    begin_sums(&sums, e->block_bytes);
    int r = move_bytes(e, job, fd, -1, buffer, &sums);
    if (r == 0 && end_sums(&sums, sum) != 0)
        r = fail(job, MONARCH_TIER_ERROR, ENOMEM);
    free(sums.of_block);
    return r;
}

static void check(struct monarch_engine *e, struct job *job, char *buffer) {
    char name[MONARCH_COPY_NAME + 4];
    struct stat st;
    copy_name(job, name);
    int fd = openat(job->copies, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        fail(job, errno == ENOENT ? MONARCH_DAMAGED : MONARCH_TIER_ERROR, errno);
    } else if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != job->entry.size) {
        fail(job, MONARCH_DAMAGED, 0);
    } else if (sum_of(e, job, fd, buffer, &job->result.sum) != 0) {
        if (job->result.status != MONARCH_ABANDONED)
            job->result.status = MONARCH_DAMAGED; /* a copy that cannot be read is none */
    } else if (job->result.sum != job->expected_sum) {
        fail(job, MONARCH_DAMAGED, 0);
    } else {
        job->result.status = MONARCH_DONE;
        job->result.copy_ino = st.st_ino;
        job->result.copy_bytes = (uint64_t)st.st_blocks * 512;
    }
    if (fd >= 0)
        close(fd);
}

static void compare(struct monarch_engine *e, struct job *job, char *buffer) {
    int fd = open_source(job);
    if (fd < 0)
        return;
    if (sum_of(e, job, fd, buffer, &job->result.sum) == 0 && source_is_unchanged(job, fd) == 0) {
        if (job->result.sum == job->expected_sum)
            job->result.status = MONARCH_DONE;
        else
            fail(job, MONARCH_DAMAGED, 0);
    }
    close(fd);
}

static void drop(struct job *job) {
    char name[MONARCH_COPY_NAME + 4];
    copy_name(job, name);
    if (unlinkat(job->copies, name, 0) != 0 && errno != ENOENT)
        fail(job, MONARCH_TIER_ERROR, errno);
    else
        job->result.status = MONARCH_DONE;
}

void monarch_do_job(struct monarch_engine *e, struct job *job, char *buffer) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    job->result.started_ns = ns(now);
    job->result.status = MONARCH_ABANDONED;
    if (__atomic_load_n(&e->stopping, __ATOMIC_RELAXED))
        return;
    if (job->result.kind == MONARCH_FILL)
        fill(e, job, buffer);
    else if (job->result.kind == MONARCH_CHECK)
        check(e, job, buffer);
    else if (job->result.kind == MONARCH_COMPARE)
        compare(e, job, buffer);
    else
        drop(job);
}

int monarch_sum_file(const char *path, uint64_t block_bytes, uint64_t *sum, uint64_t *bytes) {
    struct monarch_engine e = {.block_bytes = block_bytes};
    struct job job;
    struct stat st;
    char *buffer = malloc(MONARCH_CHUNK);
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
