/* Fills one copy, unit by unit. Several threads may write units, in any sequence. Readers may read
 * a unit as soon as it is written. */
#include "copy/fill.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "clients/demands.h"
#include "copy/from_peer.h"
#include "copy/pack.h"
#include "copy/source_file.h"
#include "copy/state.h"
#include "serving/serving.h"
#include "shared/clock.h"

/* --- beginning -------------------------------------------------------------------------------- */

static uint64_t words_for(uint64_t bits) { return (bits + 63) / 64; }

static struct fill *new_fill(const struct monarch_engine *e, struct job *job) {
    uint64_t size = job->entry.size, block = e->block_bytes, unit = monarch_unit_of(size, block);
    uint64_t units = (size + unit - 1) / unit, blocks = (size + block - 1) / block;
    struct fill *f = calloc(1, sizeof *f + words_for(units) * 8 + blocks * 4);
    uint64_t *sums = malloc((blocks ? blocks : 1) * sizeof *sums);
    /* The digests of a copy's blocks serve peers that read the copy later. A copy of one block gets
     * no digest, because this digest would not be kept (serving/sums.h). */
    const unsigned char *key =
        blocks > 1 ? monarch_holdings_key(__atomic_load_n(&e->holdings, __ATOMIC_ACQUIRE)) : NULL;
    if (!f || !sums) {
        free(f);
        free(sums);
        return NULL;
    }
    f->digests = key ? malloc(blocks * sizeof *f->digests) : NULL;
    f->content_key = f->digests ? key : NULL;
    f->job = job;
    f->units = units;
    f->unit_bytes = unit;
    f->blocks = f->blocks_left = blocks;
    f->block_bytes = block;
    f->sums = sums;
    f->claimed = (uint64_t *)(f + 1);
    f->left = (uint32_t *)(f->claimed + words_for(units));
    for (uint64_t b = 0; b < blocks; b++) {
        uint64_t end = (b + 1) * (block / unit);
        f->left[b] = (uint32_t)((end < units ? end : units) - b * (block / unit));
    }
    f->map = &e->fills->fill[job->slot];
    return f;
}

/* Reserves the copy's space before the first write, so that a full tier is noticed before any byte
 * is copied. For a small copy, a reservation would cost more than the single write. On tmpfs,
 * fallocate would first clear all pages, and readers would have to wait. So neither gets a
 * reservation. */
static int reserve(int fd, uint64_t size) {
    struct statfs fs;
    if (size <= MONARCH_CHUNK)
        return 0;
    if (fstatfs(fd, &fs) != 0 || fs.f_type != TMPFS_MAGIC) {
        if (fallocate(fd, 0, 0, (off_t)size) == 0)
            return 0;
        if (errno != EOPNOTSUPP && errno != ENOSYS)
            return -1;
    }
    return ftruncate(fd, (off_t)size);
}

static int create_copy(struct job *job) {
    char name[MONARCH_COPY_NAME + 4];
    monarch_copy_name(job, name);
    int fd = openat(job->copies, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400);
    if (fd < 0)
        return monarch_fail(job, monarch_tier_status(errno), errno);
    if (reserve(fd, job->entry.size) != 0) {
        monarch_fail(job, monarch_tier_status(errno), errno);
        close(fd);
        /* The name is the copy's number, which is never reused. So this removes no other copy. */
        monarch_remove_copy(job);
        return -1;
    }
    return fd;
}

static void wake_askers(struct monarch_engine *e, const struct job *job) {
    struct monarch_holdings *h = __atomic_load_n(&e->holdings, __ATOMIC_ACQUIRE);
    monarch_holdings_wake(h, job->entry.source, job->entry.hash);
}

/* Makes the fill visible to readers: the slot's word then contains the copy's number. Also wakes
 * the requests of peers that wait for this file. For a file of one unit, this is usually too early,
 * because nothing is sent before the copy is complete. But if this fill asks a peer, that peer may
 * be waiting for this node. Then its request is woken, so that the two nodes do not wait for each
 * other. */
static void show(struct monarch_engine *e, struct fill *f) {
    const struct job *job = f->job;
    int has_map = f->units <= MONARCH_FILL_UNITS;
    __atomic_store_n(&f->map->unit_bytes, has_map ? f->unit_bytes : 0, __ATOMIC_RELAXED);
    __atomic_store_n(&f->map->failed, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&f->map->whole, 0, __ATOMIC_RELAXED);
    for (uint64_t w = 0; has_map && w < words_for(f->units); w++)
        __atomic_store_n(&f->map->done[w], 0, __ATOMIC_RELAXED);
    __atomic_store_n(&e->fills->word[job->slot],
                     monarch_word(MONARCH_FILLING, 0, job->result.tier, job->result.copy),
                     __ATOMIC_SEQ_CST);
    if (f->units > 1 || job->peer[0] >= 0)
        wake_askers(e, job);
}

static void give_up(struct fill *f, int status, int error) {
    if (!__atomic_exchange_n(&f->failed, 1, __ATOMIC_ACQ_REL))
        monarch_fail(f->job, status, error);
}

static int begin_reading(struct monarch_engine *e, struct fill *f) {
    uint64_t began_ns = monarch_now_ns();
    int status, from = monarch_take_source(e, f->job, &status);
    if (from < 0) {
        give_up(f, status, errno);
        return -1;
    }
    monarch_note_source(e);
    f->source_ns = monarch_now_ns() - began_ns;
    __atomic_store_n(&f->from, from, __ATOMIC_RELEASE);
    return 0;
}

/* The fill is shown to readers before the file is opened at the source. So a program that opens the
 * file meanwhile already waits for the copy. */
struct fill *monarch_fill_begin(struct monarch_engine *e, struct job *job) {
    int is_by_peer = job->peer[0] >= 0, to = create_copy(job);
    struct fill *f = to < 0 ? NULL : new_fill(e, job);
    if (!f) {
        monarch_close_handed(e, job);
        if (to >= 0) {
            monarch_fail(job, MONARCH_TIER_ERROR, ENOMEM);
            close(to);
            monarch_remove_copy(job);
        }
        return NULL;
    }
    f->from = -1;
    f->peers = !is_by_peer ? 0 : job->peer[1] < 0 ? 1 : MONARCH_ASKED;
    f->to = to;
    show(e, f);
    if (job->handed >= 0)
        monarch_pack_leave(job);
    if (is_by_peer || job->pack || begin_reading(e, f) == 0)
        return f;
    monarch_fill_end(e, f);
    return NULL;
}

/* --- checksums -------------------------------------------------------------------------------- */

void monarch_block_sum_begin(struct block_sum_stream *s, const unsigned char *content_key) {
    monarch_xxh3_begin(&s->xxh3);
    s->content = content_key ? monarch_mac_new(content_key) : NULL;
    if (s->content)
        monarch_mac_begin(s->content, 0);
}

static void add_to_sums(struct block_sum_stream *s, const void *bytes, size_t n) {
    monarch_xxh3_add(&s->xxh3, bytes, n);
    if (s->content)
        monarch_mac_add(s->content, bytes, n);
}

void monarch_block_sum_end(struct block_sum_stream *s, struct block_sum *out) {
    if (out) {
        out->xxh3 = monarch_xxh3_end(&s->xxh3);
        out->has_digest = s->content && monarch_mac_end(s->content, out->digest.bytes);
    }
    monarch_mac_free(s->content);
    s->content = NULL;
}

/* --- moving ----------------------------------------------------------------------------------- */

static uint64_t end_of_block(const struct fill *f, uint64_t block) {
    uint64_t end = (block + 1) * f->block_bytes, size = f->job->entry.size;
    return end < size ? end : size;
}

static int sum_from_copy(struct fill *f, uint64_t block, char *buffer, struct block_sum *sum) {
    struct block_sum_stream stream;
    uint64_t end = end_of_block(f, block);
    int r = 0;
    monarch_block_sum_begin(&stream, f->content_key);
    for (uint64_t at = block * f->block_bytes; r == 0 && at < end;) {
        uint64_t n = end - at < MONARCH_CHUNK ? end - at : MONARCH_CHUNK;
        ssize_t got = monarch_read_fully(f->to, buffer, n, (off_t)at);
        if (got != (ssize_t)n) {
            give_up(f, MONARCH_TIER_ERROR, got < 0 ? (int)-got : EIO);
            r = -1;
        }
        add_to_sums(&stream, buffer, n);
        at += n;
    }
    monarch_block_sum_end(&stream, sum);
    return r;
}

static void record(struct fill *f, uint64_t block, const struct block_sum *sum) {
    f->sums[block] = sum->xxh3;
    if (f->digests && sum->has_digest)
        f->digests[block] = sum->digest;
    else
        __atomic_store_n(&f->lacks_digest, 1, __ATOMIC_RELAXED);
}

static void wait_for_write_back(struct fill *f, uint64_t block) {
    sync_file_range(f->to, (off_t)(block * f->block_bytes), (off_t)f->block_bytes,
                    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                        SYNC_FILE_RANGE_WAIT_AFTER);
}

/* Records a complete block. sum: the block's checksums; NULL: compute them from the copy. If the
 * file has more than MONARCH_CHUNK bytes, does two more things. First, drops this block of the
 * source's file from the page cache, because the fill does not read it again. The kernel keeps
 * pages that a program is mapping or reading. Second, starts the block's write-back. Also waits for
 * the write-back that began two blocks earlier, so that dirty pages do not accumulate. */
static void end_block(const struct monarch_engine *e, struct fill *f, uint64_t block, char *buffer,
                      const struct block_sum *sum) {
    struct block_sum own;
    if (!sum && sum_from_copy(f, block, buffer, &own) != 0)
        return;
    record(f, block, sum ? sum : &own);
    if (f->job->entry.size > MONARCH_CHUNK) {
        uint64_t at = block * f->block_bytes;
        int from = __atomic_load_n(&f->from, __ATOMIC_ACQUIRE);
        if (from >= 0 && !monarch_is_handed(f->job) && !monarch_drops_behind(e, f->job))
            posix_fadvise(from, (off_t)at, (off_t)f->block_bytes, POSIX_FADV_DONTNEED);
        sync_file_range(f->to, (off_t)at, (off_t)f->block_bytes, SYNC_FILE_RANGE_WRITE);
        uint64_t last = __atomic_exchange_n(&f->written[0], block + 1, __ATOMIC_ACQ_REL);
        uint64_t before = __atomic_exchange_n(&f->written[1], last, __ATOMIC_ACQ_REL);
        if (before)
            wait_for_write_back(f, before - 1);
    }
    __atomic_sub_fetch(&f->blocks_left, 1, __ATOMIC_ACQ_REL);
}

/* Marks units as copied, and wakes the readers that wait for them. Exception: if a peer has sent a
 * file's only unit, the readers are woken microseconds later, when the copy is published
 * (engine/work.c). Many of them need the published copy anyway. */
static void mark_done(struct monarch_engine *e, struct fill *f, uint64_t unit, uint64_t count,
                      int is_fetched) {
    for (uint64_t u = unit; u < unit + count && f->units <= MONARCH_FILL_UNITS; u++)
        __atomic_fetch_or(&f->map->done[u / 64], 1ULL << (u % 64), __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&e->fills->units, count, __ATOMIC_RELAXED);
    if (f->units > 1 || !is_fetched)
        monarch_answer(e->clients, f->job->result.id, unit, count);
    if (f->units > 1)
        wake_askers(e, f->job);
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

/* Writes bytes to the copy and, unless `stream` is NULL, adds them to the block's checksums.
 * Returns whether the write succeeded. */
static int write_copy(struct fill *f, const char *buffer, uint64_t n, uint64_t at,
                      struct block_sum_stream *stream) {
    int error = write_fully(f->to, buffer, n, (off_t)at);
    if (error) {
        give_up(f, monarch_tier_status(-error), -error);
        return 0;
    }
    if (stream)
        add_to_sums(stream, buffer, n);
    return 1;
}

/* Reads the whole file from its pack, a tar of many files, into `buffer`. Returns 0 if the file is
 * in no pack, if the pack cannot be read, or if the fill has already opened the file itself; else
 * 1. Only files of one unit are read from packs, so no other thread copies a part of this file. */
static int read_pack(struct monarch_engine *e, struct fill *f, char *buffer) {
    return f->job->pack && __atomic_load_n(&f->from, __ATOMIC_ACQUIRE) < 0 &&
           monarch_pack_read(e, f->job, buffer) == 0;
}

/* Copies bytes [at, end) from the source. Returns whether all of them were copied. */
static int read_source(struct monarch_engine *e, struct fill *f, uint64_t at, uint64_t end,
                       char *buffer, struct block_sum_stream *stream) {
    if (read_pack(e, f, buffer))
        return write_copy(f, buffer, end - at, at, stream);
    if (__atomic_load_n(&e->stopping, __ATOMIC_RELAXED)) {
        give_up(f, MONARCH_ABANDONED, 0);
        return 0;
    }
    int status, from = monarch_source_of(e, f, &status);
    if (from < 0) {
        give_up(f, status, errno);
        return 0;
    }
    while (at < end) {
        uint64_t n = end - at < MONARCH_CHUNK ? end - at : MONARCH_CHUNK;
        if (__atomic_load_n(&e->stopping, __ATOMIC_RELAXED))
            give_up(f, MONARCH_ABANDONED, 0);
        if (!__atomic_load_n(&f->failed, __ATOMIC_ACQUIRE) &&
            monarch_give_back_recalled(e, f, from, &status) != 0)
            give_up(f, status, errno);
        if (__atomic_load_n(&f->failed, __ATOMIC_ACQUIRE))
            return 0;
        ssize_t got = monarch_read_part(e, f, from, buffer, n, at);
        if (got < 0)
            give_up(f, MONARCH_SOURCE_ERROR, (int)-got);
        else if ((uint64_t)got < n)
            give_up(f, MONARCH_SOURCE_CHANGED, 0); /* the file is shorter than before */
        if (got != (ssize_t)n)
            return 0;
        if (!write_copy(f, buffer, n, at, stream))
            return 0;
        at += n;
    }
    return 1;
}

void monarch_fill_move(struct monarch_engine *e, struct fill *f, uint64_t unit, uint64_t count,
                       char *buffer, struct block_sum_stream *stream) {
    uint64_t size = f->job->entry.size, at = unit * f->unit_bytes;
    struct block_sum sum;
    uint64_t end = (unit + count) * f->unit_bytes, block = at / f->block_bytes;
    end = end < size ? end : size;
    int is_fetched = f->peers && monarch_fetch(e, f, at, end - at, buffer, &sum);
    if (!is_fetched && !read_source(e, f, at, end, buffer, stream))
        return;
    /* The checksum of the whole block is known in two cases. Either a peer has sent the whole block
     * with its sum. Or these bytes end the block, and `stream` has seen all its bytes. If the order
     * names a peer, `stream` may lack some, because it does not get the bytes that a peer sends. */
    int has_sum = end == end_of_block(f, block) &&
                  (is_fetched ? at == block * f->block_bytes : stream && f->job->peer[0] < 0);
    if (has_sum && !is_fetched)
        monarch_block_sum_end(stream, &sum);
    mark_done(e, f, unit, count, is_fetched);
    if (__atomic_sub_fetch(&f->left[block], (uint32_t)count, __ATOMIC_ACQ_REL) == 0)
        end_block(e, f, block, buffer, has_sum ? &sum : NULL);
}

/* --- ending ----------------------------------------------------------------------------------- */

int monarch_fill_is_over(const struct fill *f) {
    return __atomic_load_n(&f->failed, __ATOMIC_ACQUIRE) ||
           __atomic_load_n(&f->blocks_left, __ATOMIC_ACQUIRE) == 0;
}

static int close_copy(struct job *job, int fd) {
    struct stat st;
    struct timespec times[2] = {{0, UTIME_OMIT}, {(time_t)job->result.id, (long)job->stamp}};
    int error = fstat(fd, &st) != 0 || (job->is_stamped && futimens(fd, times) != 0) ? errno : 0;
    if (close(fd) != 0 && !error)
        error = errno;
    if (error)
        return monarch_fail(job, monarch_tier_status(error), error);
    job->result.copy_ino = st.st_ino;
    job->result.copy_bytes = (uint64_t)st.st_blocks * 512;
    return 0;
}

void monarch_fill_end(struct monarch_engine *e, struct fill *f) {
    struct job *job = f->job;
    int r = f->failed ? -1 : 0, status;
    /* If a single peer sent all bytes, no check is needed: this peer checked the file at the source
     * before it sent the last block. If several peers sent bytes, some bytes may belong to another
     * version of the file. So open the file: monarch_source_of compares its attributes with the
     * catalog's. */
    if (r == 0 && (f->gave & (f->gave - 1)) && monarch_source_of(e, f, &status) < 0)
        r = monarch_fail(job, status, errno);
    if (r == 0 && f->from >= 0)
        r = monarch_source_is_unchanged(job, f->from);
    job->result.giver = r == 0 && f->peers ? monarch_giver_of(f) : -1;
    if (r == 0) {
        job->result.sum = monarch_xxh3((const char *)f->sums, f->blocks * sizeof *f->sums);
        job->result.bytes = job->entry.size;
        r = close_copy(job, f->to);
    } else {
        close(f->to);
    }
    if (f->from >= 0) {
        int was_handed = monarch_is_handed(job);
        monarch_close_source(e, job, f->from);
        if (r == 0 && job->is_read && e->control)
            monarch_note_pages(e, job->entry.source, f->lacks_pages);
        __atomic_fetch_add(&e->counts[MONARCH_FILES], r == 0, __ATOMIC_RELAXED);
        if (r == 0 && f->units == 1 && job->peer[0] < 0 && !was_handed && e->control)
            monarch_note_speed(e, job->entry.source, f->source_ns);
    } else {
        /* MONARCH_FILES also counts files that were read from a pack */
        enum monarch_count whose = f->gave ? MONARCH_PEER_FILES : MONARCH_FILES;
        __atomic_fetch_add(&e->counts[whose], r == 0, __ATOMIC_RELAXED);
    }
    if (r == 0) {
        monarch_holdings_sums(__atomic_load_n(&e->holdings, __ATOMIC_ACQUIRE), job->result.copy,
                              f->sums, f->lacks_digest ? NULL : f->digests, f->blocks);
        __atomic_store_n(&f->map->whole, 1, __ATOMIC_SEQ_CST);
        job->result.status = MONARCH_DONE;
        job->result.block_sums = f->sums;
        job->result.blocks = f->blocks;
    } else {
        __atomic_store_n(&f->map->failed, 1, __ATOMIC_SEQ_CST);
        monarch_answer(e->clients, job->result.id, 0, MONARCH_FILL_UNITS);
        monarch_remove_copy(job);
        free(f->sums);
    }
    wake_askers(e, job);
    free(f->digests);
    free(f);
}
