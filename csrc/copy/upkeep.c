#include "copy/upkeep.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "copy/source_file.h"
#include "serving/serving.h"
#include "shared/buffer.h"
#include "shared/xxh3.h"

/* Number of bytes that one call of page_in reads. */
#define PART_BYTES (4 * MONARCH_CHUNK)

/* Computes a file's checksum in the same way as a fill: the XXH3-64 of the file's block sums, where
 * a block sum is the XXH3-64 of one block. */
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

/* Returns whether all pages of a chunk are in the page cache. Loads no pages. */
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

/* Reads the next part of a copy into the page cache. Between two parts, the thread can do more
 * urgent work. Ordinary reads are used for two reasons. The kernel may shorten a request for
 * read-ahead. And with ordinary reads, each thread reads one part at a time, which limits the load
 * on the tier. */
static void page_in(struct job *job, char *buffer) {
    uint64_t size = job->entry.size, end = job->result.bytes + PART_BYTES;
    int fd = open_copy(job);
    if (fd < 0) {
        monarch_fail(job, MONARCH_TIER_ERROR, errno);
        return;
    }
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    /* Since Linux 6.3, POSIX_FADV_NOREUSE prevents reads from marking the pages as recently
     * used. */
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

void monarch_do_upkeep(struct monarch_engine *e, struct job *job, char *buffer) {
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
