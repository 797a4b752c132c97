#include <errno.h>
#include <fcntl.h>

#include "copy/pack.h"
#include "short_io.h"

/* If not 0, each reservation of space fails with this errno. */
static int lacks;
static int reserve_space(int fd, int mode, off_t at, off_t n) {
    errno = lacks;
    return lacks ? -1 : fallocate(fd, mode, at, n);
}
/* If -1, reads from a pack fail. Otherwise a read returns this many bytes, computed from seed 7. */
static int64_t in_pack = -1;
static int read_from_pack(struct monarch_engine *e, struct job *job, char *to);
/* backs: the write-backs in their order, one letter each: "a" or "A" for block 0, "b" or "B" for
 * block 1, and so on. A small letter means that the write-back was started, and a capital letter
 * means that the fill waited for it. given: the blocks whose pages were dropped from the page
 * cache. */
static char backs[64], given[64];
static int write_back(int fd, off_t at, off_t n, unsigned flags);
static int advise(int fd, off_t at, off_t n, int what);
/* How often a fill has woken peers that wait for its file. */
static int wakes;
static void wake_peers(struct monarch_holdings *h, uint32_t source, uint64_t path_hash);
#define fallocate reserve_space
#define monarch_holdings_wake wake_peers
#define monarch_pack_read read_from_pack
#define sync_file_range write_back
#define posix_fadvise advise
#include "copy/fill.c"
#undef fallocate
#undef sync_file_range
#undef posix_fadvise

#include "checks.h"
#include "shared/claims.h"

static struct monarch_engine *e;
static struct job *job;
static int root, copies;
static char buffer[MONARCH_CHUNK];
static const unsigned char key[MONARCH_KEY_BYTES] = "0123456789abcde";

static void note(char *to, int letter) {
    size_t n = strlen(to);
    CHECK(n + 1 < sizeof backs);
    to[n] = (char)letter;
    to[n + 1] = 0;
}

static int write_back(int fd, off_t at, off_t n, unsigned flags) {
    SAME(n, e->block_bytes);
    note(backs, (flags & SYNC_FILE_RANGE_WAIT_AFTER ? 'A' : 'a') + (int)(at / n));
    return sync_file_range(fd, at, n, flags);
}

static int advise(int fd, off_t at, off_t n, int what) {
    SAME(what, POSIX_FADV_DONTNEED);
    note(given, 'a' + (int)(at / n));
    return posix_fadvise(fd, at, n, what);
}

static void wake_peers(struct monarch_holdings *h, uint32_t source, uint64_t path_hash) {
    CHECK(h == e->holdings && source == job->entry.source && path_hash == job->entry.hash);
    wakes++;
}

static int read_from_pack(struct monarch_engine *of, struct job *order, char *to) {
    CHECK(of == e && order == job);
    job->pack = NULL;
    if (in_pack < 0)
        return -1;
    make_bytes(7, 0, 0, to, (uint64_t)in_pack);
    return 0;
}

static void make(uint64_t size, uint64_t block) {
    e = make_engine(block);
    root = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    mkdir("copies", 0700);
    copies = open("copies", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    unlink("file");
    close(make_file("file", size, 7));
    job = make_job(root, copies, "file", 0x77);
    job->result.id = 5;
    job->result.tier = 2;
    job->slot = 9;
}

static void done(void) {
    unlinkat(copies, "0000000000077", 0);
    close(root);
    close(copies);
    free(job);
    free_engine(e);
}

static int is_done(uint64_t unit) { return e->fills->fill[9].done[unit / 64] >> unit % 64 & 1; }

static void demand(int slot, uint64_t entry, uint64_t unit) {
    e->clients->demand[slot] = monarch_demand(entry, unit, 2, 0);
}

/* The units of a file cover it exactly, and so do its blocks, whatever the file's size. */
TEST(units_and_blocks_cover_the_file) {
    const uint64_t unit = MONARCH_UNIT, block = 3 * unit;
    const uint64_t at[] = {0, unit, block, 2 * block, 2 * block + unit};
    for (unsigned i = 0; i < 5; i++)
        for (int more = -1; more < 2; more++) {
            if (!at[i] && more < 0)
                continue;
            make(0, block);
            uint64_t size = job->entry.size = at[i] + (uint64_t)more, units = 0;
            struct fill *f = new_fill(e, job);
            SAME(f->unit_bytes, unit);
            SAME(f->units, (size + unit - 1) / unit);
            SAME(f->blocks, (size + block - 1) / block);
            SAME(f->blocks_left, f->blocks);
            SAME(f->block_bytes, block);
            CHECK(f->map == &e->fills->fill[9] && !f->digests && !f->content_key);
            for (uint64_t b = 0; b < f->blocks; b++) {
                CHECK(f->left[b] >= 1 && f->left[b] <= 3);
                CHECK(f->left[b] == 3 || b == f->blocks - 1);
                units += f->left[b];
                /* If the array of sums were too short, the sanitizer would report this write. */
                f->sums[b] = b;
                SAME(end_of_block(f, b), (b + 1) * block < size ? (b + 1) * block : size);
            }
            SAME(units, f->units);
            for (uint64_t w = 0; w < (f->units + 63) / 64; w++)
                SAME(f->claimed[w], 0);
            free(f->sums);
            free(f);
            done();
        }
}

/* No room is reserved for a small copy. A larger copy gets all its room before its first byte. */
TEST(a_large_copy_has_its_room_from_the_beginning) {
    const uint64_t sizes[] = {0, MONARCH_CHUNK, MONARCH_CHUNK + 1};
    for (int i = 0; i < 3; i++) {
        struct stat st;
        make(0, MONARCH_CHUNK);
        job->entry.size = sizes[i];
        int fd = create_copy(job);
        CHECK(fd >= 0 && fstat(fd, &st) == 0);
        SAME(st.st_size, i == 2 ? sizes[i] : 0);
        SAME(st.st_mode & 07777, 0400);
        SAME(fcntl(fd, F_GETFD), FD_CLOEXEC);
        close(fd);
        SAME(create_copy(job), -1); /* an existing copy is never overwritten */
        SAME(job->result.status, MONARCH_TIER_ERROR);
        SAME(job->result.error, EEXIST);
        done();
    }
}

/* If the room for a copy cannot be reserved, the fill fails and leaves no file in the tier. */
TEST(a_copy_without_room_leaves_nothing) {
    make(0, MONARCH_CHUNK);
    job->entry.size = 1ULL << 62;
    int before = open_descriptors();
    SAME(create_copy(job), -1);
    CHECK(job->result.status == MONARCH_TIER_FULL || job->result.status == MONARCH_TIER_ERROR);
    CHECK(job->result.error == ENOSPC || job->result.error == EFBIG);
    CHECK(faccessat(copies, "0000000000077", F_OK, AT_SYMLINK_NOFOLLOW) != 0);
    SAME(open_descriptors(), before);
    done();
}

/* If the file system cannot reserve room at all, the copy is made without a reservation. If the
 * reservation fails with any other error, the fill ends. */
TEST(a_file_system_that_reserves_nothing_still_takes_copies) {
    const int errors[] = {EOPNOTSUPP, ENOSYS, EIO, ENOSPC};
    struct statfs fs;
    make(0, MONARCH_CHUNK);
    CHECK(fstatfs(copies, &fs) == 0);
    for (int i = 0; i < 4 && fs.f_type != TMPFS_MAGIC; i++) {
        job->entry.size = MONARCH_CHUNK + 1;
        lacks = errors[i];
        int fd = create_copy(job);
        SAME(fd >= 0, i < 2);
        if (fd >= 0)
            SAME(lseek(fd, 0, SEEK_END), MONARCH_CHUNK + 1);
        else
            SAME(job->result.error, errors[i]);
        if (fd >= 0)
            close(fd);
        unlinkat(copies, "0000000000077", 0);
    }
    done();
}

/* If an order names peers, they are asked first, and the source file is not opened yet. If the
 * order has neither a peer nor a pack, the file is opened at once. This open counts as an answer of
 * the source. */
TEST(a_fill_opens_the_source_at_once_only_without_peers) {
    const int peers[][2] = {{-1, -1}, {0, -1}, {3, 0}, {3, 4}};
    for (int i = 0; i < 4; i++) {
        make(10, MONARCH_UNIT);
        memcpy(job->peer, peers[i], sizeof peers[i]);
        struct fill *f = monarch_fill_begin(e, job);
        SAME(f->peers, i == 0 ? 0 : i == 1 ? 1 : MONARCH_ASKED);
        SAME(f->from >= 0, i == 0);
        SAME(e->fills->source_ns > 0, i == 0);
        SAME(f->source_ns > 0, i == 0);
        give_up(f, MONARCH_ABANDONED, 0);
        monarch_fill_end(e, f);
        SAME(job->result.giver, -1);
        done();
    }
}

TEST(a_lack_of_room_is_told_from_other_errors) {
    const int full[] = {ENOSPC, EDQUOT, ENOMEM}, other[] = {EIO, EACCES, EROFS, 0};
    for (int i = 0; i < 3; i++)
        SAME(monarch_tier_status(full[i]), MONARCH_TIER_FULL);
    for (int i = 0; i < 4; i++)
        SAME(monarch_tier_status(other[i]), MONARCH_TIER_ERROR);
}

/* Readers find a fill by the word of its slot. The map shows only units of this fill, even if
 * another fill used the slot before. */
TEST(a_fill_is_shown_with_an_empty_map) {
    make(3 * MONARCH_UNIT + 1, MONARCH_UNIT);
    memset(&e->fills->fill[9], 0xFF, sizeof e->fills->fill[9]);
    struct fill *f = monarch_fill_begin(e, job);
    CHECK(f && f->from >= 0 && f->to >= 0);
    SAME(e->fills->word[9], monarch_word(MONARCH_FILLING, 0, 2, 0x77));
    SAME(MONARCH_WORD_TIER(e->fills->word[9]), 2);
    SAME(e->fills->fill[9].unit_bytes, MONARCH_UNIT);
    SAME(e->fills->fill[9].failed, 0);
    SAME(e->fills->fill[9].whole, 0);
    for (int u = 0; u < 4; u++)
        SAME(is_done((uint64_t)u), 0);
    give_up(f, MONARCH_ABANDONED, 0);
    monarch_fill_end(e, f);
    done();
}

/* If a file has only one unit, peers get nothing of it before the end of its fill, so they are
 * woken only then. If it has more units, they are woken at the beginning of the fill and after each
 * unit. */
TEST(a_fill_wakes_the_peers_that_can_get_bytes) {
    for (uint64_t units = 1; units < 3; units++) {
        make((units - 1) * MONARCH_UNIT + 10, MONARCH_UNIT);
        wakes = 0;
        struct fill *f = monarch_fill_begin(e, job);
        SAME(f->units, units);
        SAME(wakes, units > 1);
        for (uint64_t u = 0; u < units; u++)
            monarch_fill_move(e, f, u, 1, buffer, NULL);
        SAME(wakes, units > 1 ? 3 : 0);
        monarch_fill_end(e, f);
        SAME(wakes, units > 1 ? 4 : 1);
        free(job->result.block_sums);
        done();
    }
}

/* Two nodes may ask each other for the same small file. So a fill that asks a peer begins by waking
 * the peers that wait for the file. They then learn that this node does not have the file. */
TEST(a_fill_from_a_peer_wakes_peers_at_its_beginning) {
    make(10, MONARCH_UNIT);
    job->peer[0] = 3;
    wakes = 0;
    struct fill *f = monarch_fill_begin(e, job);
    SAME(wakes, 1);
    give_up(f, MONARCH_ABANDONED, 0);
    monarch_fill_end(e, f);
    SAME(wakes, 2);
    done();
}

/* If a file has more units than the map has bits, the fill is shown without a map. Readers then
 * wait until the fill ends. */
TEST(a_file_of_too_many_units_has_no_map) {
    make(0, 1000);
    for (int more = 0; more < 2; more++) {
        job->entry.size = (uint64_t)MONARCH_FILL_UNITS * 1000 + (uint64_t)more;
        struct fill *f = new_fill(e, job);
        SAME(f->units, MONARCH_FILL_UNITS + more);
        show(e, f);
        SAME(f->map->unit_bytes, more ? 0 : 1000);
        mark_done(e, f, MONARCH_FILL_UNITS - 1, 1, 0);
        SAME(is_done(MONARCH_FILL_UNITS - 1), !more);
        f->map->done[MONARCH_FILL_UNITS / 64 - 1] = 0;
        free(f->sums);
        free(f);
    }
    done();
}

/* --- whole fills ------------------------------------------------------------------------------ */

/* Fills the file in runs of at most `run` units, and returns the fill. If `backwards` is set, fills
 * the last block first, and passes no stream in which the sums of the blocks could be computed. */
static struct fill *fill_all(uint64_t run, int backwards) {
    struct fill *f = monarch_fill_begin(e, job);
    CHECK(f);
    uint64_t per_block = f->block_bytes / f->unit_bytes;
    for (uint64_t i = 0; i < f->blocks; i++) {
        uint64_t b = backwards ? f->blocks - 1 - i : i, unit = b * per_block;
        uint64_t end = unit + per_block < f->units ? unit + per_block : f->units;
        struct block_sum_stream stream;
        monarch_block_sum_begin(&stream, f->content_key);
        for (uint64_t n; unit < end; unit += n) {
            n = end - unit < run ? end - unit : run;
            CHECK(!monarch_fill_is_over(f) && !is_done(unit));
            monarch_fill_move(e, f, unit, n, buffer, backwards ? NULL : &stream);
            CHECK(is_done(unit) && is_done(unit + n - 1));
        }
        monarch_block_sum_end(&stream, NULL);
    }
    return f;
}

/* Checks the size and the bytes of the copy, and the sums of its blocks. */
static void check_copy(uint64_t size, const uint64_t *sums) {
    int fd = openat(copies, "0000000000077", O_RDONLY | O_CLOEXEC);
    struct stat st;
    char *all = malloc(size + 1);
    CHECK(fd >= 0 && fstat(fd, &st) == 0);
    SAME(st.st_size, size);
    SAME(job->result.copy_ino, st.st_ino);
    SAME(job->result.copy_bytes, st.st_blocks * 512);
    SAME(read(fd, all, size + 1), size);
    check_bytes(7, 0, 0, all, size);
    for (uint64_t at = 0, b = 0; at < size; at += e->block_bytes, b++)
        SAME(sums[b],
             monarch_xxh3(all + at, size - at < e->block_bytes ? size - at : e->block_bytes));
    free(all);
    close(fd);
}

/* A copy has the bytes and the block sums of its file, whatever the order in which its units are
 * copied. The result reports the number of bytes and the sums. No descriptor is left open. */
TEST(a_copy_is_its_file_whatever_the_order) {
    const uint64_t block = 4 * MONARCH_UNIT;
    const uint64_t sizes[] = {0, 1, MONARCH_UNIT, block - 1, block, block + 1, 3 * block + 77};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int way = 0; way < 4; way++) {
            uint64_t size = sizes[i];
            make(size, block);
            int before = open_descriptors();
            struct fill *f = fill_all(way % 2 ? 1 : 4, way / 2);
            CHECK(monarch_fill_is_over(f));
            monarch_fill_end(e, f);
            SAME(job->result.status, MONARCH_DONE);
            SAME(job->result.error, 0);
            SAME(job->result.bytes, size);
            SAME(job->result.blocks, (size + block - 1) / block);
            SAME(job->result.giver, -1);
            SAME(job->result.sum, monarch_xxh3((char *)job->result.block_sums,
                                               job->result.blocks * sizeof(uint64_t)));
            check_copy(size, job->result.block_sums);
            free(job->result.block_sums);
            SAME(e->fills->fill[9].whole, 1);
            SAME(e->fills->fill[9].failed, 0);
            SAME(e->fills->units, (size + MONARCH_UNIT - 1) / MONARCH_UNIT);
            SAME(e->counts[MONARCH_BYTES], size);
            SAME(e->counts[MONARCH_FILES], 1);
            SAME(e->counts[MONARCH_PEER_FILES], 0);
            /* the speed of a source is judged only by files of one unit */
            SAME(e->judged[0], size > 0 && size <= MONARCH_UNIT);
            SAME(open_descriptors(), before);
            done();
        }
}

/* A demand is answered once its unit has been copied. All other demands for the file are answered
 * when the fill ends. */
TEST(a_unit_answers_the_demands_for_it) {
    make(4 * MONARCH_UNIT, 4 * MONARCH_UNIT);
    struct fill *f = monarch_fill_begin(e, job);
    demand(0, 5, 0);
    demand(1, 5, 1);
    demand(2, 5, 2);
    demand(3, 5, 3);
    demand(4, 6, 1); /* of another file */
    monarch_fill_move(e, f, 1, 2, buffer, NULL);
    CHECK(e->clients->demand[0] && !e->clients->demand[1] && !e->clients->demand[2] &&
          e->clients->demand[3] && e->clients->demand[4]);
    give_up(f, MONARCH_SOURCE_ERROR, EIO);
    give_up(f, MONARCH_TIER_ERROR, ENOSPC); /* the first reason counts */
    CHECK(monarch_fill_is_over(f));
    int before = open_descriptors();
    monarch_fill_end(e, f);
    SAME(job->result.status, MONARCH_SOURCE_ERROR);
    SAME(job->result.error, EIO);
    SAME(e->fills->fill[9].failed, 1);
    SAME(e->fills->fill[9].whole, 0);
    CHECK(!e->clients->demand[0] && !e->clients->demand[3] && e->clients->demand[4]);
    CHECK(faccessat(copies, "0000000000077", F_OK, AT_SYMLINK_NOFOLLOW) != 0);
    SAME(e->counts[MONARCH_FILES], 0);
    SAME(open_descriptors(), before - 2);
    done();
}

/* If a file has only one unit, and the unit comes from the source, demands for the unit are
 * answered at once. Only afterwards does the fill check at the source whether the file is
 * unchanged. If the unit comes from a peer, the demands are answered only when the fill ends. */
TEST(a_file_of_one_unit_from_a_peer_answers_later) {
    for (uint64_t units = 1; units < 3; units++)
        for (int is_fetched = 0; is_fetched < 2; is_fetched++) {
            make(units * MONARCH_UNIT, 4 * MONARCH_UNIT);
            struct fill *f = monarch_fill_begin(e, job);
            demand(0, 5, 0);
            mark_done(e, f, 0, 1, is_fetched);
            SAME(!e->clients->demand[0], !is_fetched || units > 1);
            SAME(is_done(0), 1);
            give_up(f, MONARCH_ABANDONED, 0);
            monarch_fill_end(e, f);
            SAME(e->clients->demand[0], 0);
            done();
        }
}

/* If a file has changed since its fill was ordered, or changes during the fill, the file gets no
 * copy. */
TEST(a_file_that_changes_gives_no_copy) {
    for (int way = 0; way < 4; way++) {
        make(2 * MONARCH_UNIT, MONARCH_UNIT);
        int before = open_descriptors();
        if (way == 0)
            CHECK(truncate("file", 7) == 0);
        struct fill *f = monarch_fill_begin(e, job);
        SAME(f != NULL, way > 0);
        if (way == 1)
            CHECK(truncate("file", 2 * MONARCH_UNIT - 1) == 0);
        if (way == 3)
            CHECK(unlink("file") == 0 && close(make_file("file", 2 * MONARCH_UNIT, 8)) == 0);
        if (f) {
            monarch_fill_move(e, f, 0, 1, buffer, NULL);
            monarch_fill_move(e, f, 1, 1, buffer, NULL);
            SAME(f->failed, way == 1);
            if (way == 2)
                CHECK(utimensat(root, "file", NULL, 0) == 0);
            monarch_fill_end(e, f);
        }
        /* in way 3, the open file has a new ctime, because it has lost its last link */
        SAME(job->result.status, MONARCH_SOURCE_CHANGED);
        SAME(e->fills->fill[9].failed, 1);
        CHECK(faccessat(copies, "0000000000077", F_OK, AT_SYMLINK_NOFOLLOW) != 0);
        SAME(open_descriptors(), before);
        done();
    }
}

/* A fill notices that its file has become shorter, even if the file now ends exactly where a chunk
 * ends. This does not count as an error of the source. */
TEST(a_file_that_ends_early_has_changed) {
    make(2 * MONARCH_CHUNK, 2 * MONARCH_CHUNK);
    struct fill *f = monarch_fill_begin(e, job);
    CHECK(truncate("file", MONARCH_CHUNK) == 0);
    SAME(read_source(e, f, 0, 2 * MONARCH_CHUNK, buffer, NULL), 0);
    SAME(job->result.status, MONARCH_SOURCE_CHANGED);
    SAME(e->counts[MONARCH_BYTES], MONARCH_CHUNK);
    /* after a fill has failed, nothing more is read or counted */
    SAME(read_source(e, f, 0, 100, buffer, NULL), 0);
    SAME(e->counts[MONARCH_BYTES], MONARCH_CHUNK);
    monarch_fill_end(e, f);
    done();
}

/* If the bytes of a file come from a pack, the file is not opened. If the pack cannot be read, the
 * file is opened after all. If the open fails too, the fill fails. */
TEST(a_pack_spares_the_open_of_the_file) {
    for (int way = 0; way < 3; way++) {
        make(5000, MONARCH_UNIT);
        job->pack = (struct pack *)e;
        in_pack = way ? -1 : 5000;
        struct fill *f = monarch_fill_begin(e, job);
        CHECK(f && f->from < 0 && !e->fills->source_ns);
        if (way != 1)
            CHECK(unlink("file") == 0);
        struct block_sum_stream stream;
        monarch_block_sum_begin(&stream, NULL);
        monarch_fill_move(e, f, 0, 1, buffer, &stream);
        SAME(f->from >= 0, way == 1);
        monarch_fill_end(e, f);
        SAME(job->result.status, way < 2 ? MONARCH_DONE : MONARCH_SOURCE_CHANGED);
        SAME(job->result.error, way < 2 ? 0 : ENOENT);
        SAME(e->counts[MONARCH_FILES], way < 2);
        SAME(e->counts[MONARCH_PEER_FILES], 0);
        if (way < 2)
            check_copy(5000, job->result.block_sums);
        free(job->result.block_sums);
        done();
    }
}

/* A copy made from the bytes of several peers is checked at the source afterwards. A copy that one
 * peer has sent completely is not checked, because this peer has checked its own copy. Copies from
 * a single peer are counted separately. */
TEST(a_copy_of_several_peers_is_checked_at_the_source) {
    for (int way = 0; way < 4; way++) {
        const int peers[] = {3, 8};
        make(10, MONARCH_UNIT);
        memcpy(job->peer, peers, sizeof peers);
        struct fill *f = monarch_fill_begin(e, job);
        f->gave = way < 2 ? 2 : 3;
        f->sums[0] = f->blocks_left = 0;
        if (way % 2)
            CHECK(unlink("file") == 0);
        monarch_fill_end(e, f);
        SAME(job->result.status, way < 3 ? MONARCH_DONE : MONARCH_SOURCE_CHANGED);
        SAME(job->result.giver, way < 2 ? 8 : -1);
        SAME(e->counts[MONARCH_PEER_FILES], way < 2);
        /* in way 2, the source was asked, so the file counts as copied from the source */
        SAME(e->counts[MONARCH_FILES], way == 2);
        if (way < 3)
            free(job->result.block_sums);
        done();
    }
}

/* When block N of a large copy is complete, its write-back begins at once. Then the fill waits for
 * the write-back of block N - 2. So at most two blocks are dirty. The source file's pages of
 * block N are also dropped from the page cache, unless the kernel has dropped them itself. */
TEST(a_large_copy_is_written_back_as_it_grows) {
    for (int kept = 0; kept < 2; kept++) {
        make(5 * MONARCH_UNIT, MONARCH_UNIT);
        backs[0] = given[0] = 0;
        e->kept_sources = (uint32_t)kept;
        struct fill *f = fill_all(1, 0);
        CHECK(strcmp(backs, "abcAdBeC") == 0);
        CHECK(strcmp(given, kept || e->kept_sources ? "abcde" : "") == 0);
        monarch_fill_end(e, f);
        free(job->result.block_sums);
        done();
    }
    make(MONARCH_CHUNK, MONARCH_UNIT);
    backs[0] = given[0] = 0;
    monarch_fill_end(e, fill_all(1, 0));
    /* For a copy of at most one chunk, the fill leaves the write-back to the kernel. */
    CHECK(!backs[0] && !given[0]);
    free(job->result.block_sums);
    done();
}

/* All bytes are written even if writes are interrupted or short. */
TEST(interrupted_writes_write_all_bytes) {
    make(20000, MONARCH_UNIT);
    most_moved = 777;
    monarch_fill_end(e, fill_all(1, 0));
    most_moved = 0;
    check_copy(20000, job->result.block_sums);
    free(job->result.block_sums);
    done();
}

/* Once the engine stops, a fill begins no further read and is abandoned. */
TEST(an_engine_that_stops_abandons_its_fills) {
    make(MONARCH_UNIT, MONARCH_UNIT);
    struct fill *f = monarch_fill_begin(e, job);
    e->stopping = 1;
    monarch_fill_move(e, f, 0, 1, buffer, NULL);
    SAME(f->failed, 1);
    SAME(e->counts[MONARCH_BYTES], 0);
    monarch_fill_end(e, f);
    SAME(job->result.status, MONARCH_ABANDONED);
    done();
}

/* If a copy cannot be written or read back, the fill fails with the tier's error. */
TEST(a_copy_that_the_tier_loses_fails) {
    const int errors[] = {EBADF, EIO, EBADF};
    for (int way = 0; way < 3; way++) {
        struct block_sum sum;
        make(MONARCH_UNIT + 5, MONARCH_UNIT);
        struct fill *f = monarch_fill_begin(e, job);
        if (way == 0) {
            int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
            dup3(fd, f->to, O_CLOEXEC);
            close(fd);
            monarch_fill_move(e, f, 0, 1, buffer, NULL);
        } else {
            CHECK(ftruncate(f->to, MONARCH_UNIT + (way == 1 ? 4 : 5)) == 0);
            SAME(sum_from_copy(f, 0, buffer, &sum), 0);
            int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
            if (way == 2)
                dup3(fd, f->to, O_CLOEXEC);
            close(fd);
            SAME(sum_from_copy(f, 1, buffer, &sum), -1);
        }
        SAME(f->failed, 1);
        SAME(job->result.status, MONARCH_TIER_ERROR);
        SAME(job->result.error, errors[way]);
        monarch_fill_end(e, f);
        done();
    }
}

/* --- sums ------------------------------------------------------------------------------------- */

/* If a copy may be sent to peers, its blocks get digests. The digests are kept only if every block
 * has a digest. */
TEST(blocks_of_a_copy_for_peers_have_digests) {
    for (int way = 0; way < 2; way++) {
        make(2 * MONARCH_CHUNK + 1, MONARCH_CHUNK);
        e->holdings = monarch_holdings_new(e->clients, e->fills, MONARCH_CHUNK, key);
        struct fill *f = fill_all(way ? 1 : 4, way);
        CHECK(f->digests && f->content_key && !f->lacks_digest);
        for (uint64_t b = 0; b < 3; b++) {
            struct monarch_mac *m = monarch_mac_new(key);
            struct monarch_digest right;
            ssize_t n = pread(f->to, buffer, MONARCH_CHUNK, (off_t)(b * MONARCH_CHUNK));
            monarch_mac_begin(m, 0);
            monarch_mac_add(m, buffer, (size_t)n);
            monarch_mac_end(m, right.bytes);
            monarch_mac_free(m);
            CHECK(memcmp(&right, &f->digests[b], sizeof right) == 0);
        }
        struct block_sum without = {.xxh3 = 1};
        record(f, 1, &without);
        SAME(f->lacks_digest, 1);
        SAME(f->sums[1], 1);
        give_up(f, MONARCH_ABANDONED, 0);
        monarch_fill_end(e, f);
        monarch_holdings_free(e->holdings);
        done();
    }
}

/* The mtime of a stamped copy identifies its entry: the seconds are the number of the entry, and
 * the nanoseconds are the stamp. */
TEST(a_stamped_copy_carries_its_entry) {
    for (int is_stamped = 0; is_stamped < 2; is_stamped++) {
        struct stat st;
        make(10, MONARCH_UNIT);
        job->is_stamped = is_stamped;
        job->stamp = 123456789;
        job->result.id = 77;
        monarch_fill_end(e, fill_all(1, 0));
        CHECK(fstatat(copies, "0000000000077", &st, 0) == 0);
        SAME(st.st_mtim.tv_sec == 77 && st.st_mtim.tv_nsec == 123456789, is_stamped);
        SAME(st.st_atim.tv_sec == 0, 0);
        free(job->result.block_sums);
        done();
    }
    make(10, MONARCH_UNIT);
    SAME(close_copy(job, -1), -1);
    SAME(job->result.status, MONARCH_TIER_ERROR);
    SAME(job->result.error, EBADF);
    done();
}

/* --- descriptors that were handed over -------------------------------------------------------- */

/* If a fill cannot begin, it closes the descriptor that came with its order. */
TEST(a_fill_that_does_not_begin_leaves_no_descriptor) {
    make(10, MONARCH_UNIT);
    close(create_copy(job)); /* the name is taken */
    int before = open_descriptors();
    job->handed = open("file", O_RDONLY | O_CLOEXEC);
    CHECK(!monarch_fill_begin(e, job));
    SAME(job->handed, -1);
    SAME(open_descriptors(), before);
    done();
}

/* If a program wants its descriptor back while the fill runs, the fill closes the descriptor before
 * the fill's next read. */
TEST(a_recalled_descriptor_is_given_back_before_the_next_read) {
    struct stat st;
    make(2 * MONARCH_UNIT, MONARCH_UNIT);
    CHECK(fstat(root, &st) == 0);
    e->control->source[0].dev = st.st_dev;
    job->claim = 5;
    CHECK(monarch_begin_claim(e->clients, 5));
    job->handed = open("file", O_RDONLY | O_CLOEXEC);
    struct fill *f = monarch_fill_begin(e, job);
    CHECK(f && f->from == job->handed);
    monarch_fill_move(e, f, 0, 1, buffer, NULL);
    CHECK(job->handed >= 0 && e->clients->claim[5]);
    e->clients->claim[5] |= MONARCH_CLAIM_RECALLED;
    monarch_fill_move(e, f, 1, 1, buffer, NULL);
    CHECK(job->handed < 0 && !e->clients->claim[5]);
    monarch_fill_end(e, f);
    SAME(job->result.status, MONARCH_DONE);
    check_copy(2 * MONARCH_UNIT, job->result.block_sums);
    free(job->result.block_sums);
    done();
}
