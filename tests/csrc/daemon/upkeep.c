/* Tests copy/upkeep.c: how copies are checked, compared with their files, removed, and read into
 * memory. */
#include <sys/stat.h>

/* If not NULL, called after each fstat that copy/upkeep.c makes. */
static void (*after_fstat)(void);
static int noted_fstat(int fd, struct stat *st) {
    int r = fstat(fd, st);
    if (after_fstat)
        after_fstat();
    return r;
}
#define fstat noted_fstat
#include "copy/upkeep.c"
#undef fstat

#include "checks.h"

#define BLOCK (64 * 1024)
#define COPY 0x1a2b
#define COPY_NAME "0000000001a2b"

static char buffer[MONARCH_CHUNK];
static int here;

/* Makes a source file with the name "file", a copy of it, and an order of the given kind for
 * both. */
static struct job *order(struct monarch_engine *e, enum monarch_job_kind kind, uint64_t size) {
    char name[MONARCH_COPY_NAME + 4];
    uint64_t bytes;
    here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    unlink("file");
    close(make_file("file", size, 7));
    struct job *job = make_job(here, here, "file", COPY);
    monarch_copy_name(job, name);
    unlink(name);
    close(make_file(name, size, 7));
    job->result.kind = kind;
    SAME(monarch_sum_file("file", e->block_bytes, &job->expected_sum, &bytes), 0);
    SAME(bytes, size);
    return job;
}

static void done_with(struct monarch_engine *e, struct job *job) {
    close(here);
    free(job);
    free_engine(e);
}

static const uint64_t sizes[] = {0,         1,         BLOCK - 1,         BLOCK,
                                 BLOCK + 1, BLOCK * 3, MONARCH_CHUNK - 1, MONARCH_CHUNK + 1};

/* The checksum of a file is computed from the sums of its blocks. It is right for every block size,
 * and no matter where the individual reads of the file end. */
TEST(the_sum_of_a_file_is_that_of_its_block_sums) {
    const uint64_t blocks[] = {1000, BLOCK, 2 * MONARCH_CHUNK + 4096};
    const uint64_t size = 2 * MONARCH_CHUNK + 4097;
    char *all = malloc(size);
    uint64_t sums[size / 1000 + 1], sum, bytes;
    close(make_file("file", size, 3));
    make_bytes(3, 0, 0, all, size);
    for (int i = 0; i < 3; i++) {
        uint64_t n = 0;
        for (uint64_t at = 0; at < size; at += blocks[i])
            sums[n++] = monarch_xxh3_of(all + at, size - at < blocks[i] ? size - at : blocks[i]);
        SAME(monarch_sum_file("file", blocks[i], &sum, &bytes), 0);
        SAME(bytes, size);
        SAME(sum, monarch_xxh3_of((char *)sums, n * 8));
    }
    free(all);
    int before = open_descriptors();
    SAME(monarch_sum_file("none", BLOCK, &sum, &bytes), -ENOENT);
    CHECK(symlink("file", "link") == 0);
    SAME(monarch_sum_file("link", BLOCK, &sum, &bytes), -ELOOP);
    CHECK(mkdir("directory", 0700) == 0);
    CHECK(monarch_sum_file("directory", BLOCK, &sum, &bytes) < 0);
    SAME(open_descriptors(), before);
}

/* A copy with the right bytes passes a check. The result reports how much room the copy takes in
 * its tier. */
TEST(a_check_finds_a_good_copy_good) {
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct monarch_engine *e = make_engine(BLOCK);
        struct job *job = order(e, MONARCH_CHECK, sizes[i]);
        struct stat st;
        int before = open_descriptors();
        monarch_do_upkeep(e, job, buffer);
        CHECK(stat(COPY_NAME, &st) == 0);
        SAME(job->result.status, MONARCH_DONE);
        SAME(job->result.error, 0);
        SAME(job->result.sum, job->expected_sum);
        SAME(job->result.bytes, sizes[i]);
        SAME(job->result.copy_ino, st.st_ino);
        SAME(job->result.copy_bytes, st.st_blocks * 512);
        SAME(e->counts[MONARCH_BYTES], 0); /* the source was not asked */
        SAME(open_descriptors(), before);
        done_with(e, job);
    }
}

static void flip(const char *name, off_t at) {
    char byte;
    int fd = open(name, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 1;
    CHECK(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

enum damage { A_BYTE, THE_LAST_BYTE, SHORTER, LONGER, GONE, A_LINK, A_DIRECTORY, A_PIPE, NONE };

static void damage(enum damage how, const char *name, uint64_t size) {
    if (how == A_BYTE || how == THE_LAST_BYTE)
        flip(name, how == A_BYTE ? 0 : (off_t)size - 1);
    else if (how == SHORTER || how == LONGER)
        CHECK(truncate(name, (off_t)size + (how == LONGER ? 1 : -1)) == 0);
    else if (how != NONE)
        CHECK(unlink(name) == 0);
    if (how == A_LINK)
        CHECK(symlink("file", name) == 0);
    if (how == A_DIRECTORY)
        CHECK(mkdir(name, 0700) == 0);
    if (how == A_PIPE)
        CHECK(mkfifo(name, 0600) == 0);
}

/* A copy counts as damaged if a byte, its length or its kind is wrong, or if it is gone. If it has
 * become a link, this is an error of the tier. */
TEST(a_check_finds_each_damage_of_a_copy) {
    for (enum damage how = A_BYTE; how < NONE; how++) {
        struct monarch_engine *e = make_engine(BLOCK);
        struct job *job = order(e, MONARCH_CHECK, 3 * BLOCK);
        damage(how, COPY_NAME, 3 * BLOCK);
        int before = open_descriptors();
        monarch_do_upkeep(e, job, buffer);
        SAME(job->result.status, how == A_LINK ? MONARCH_TIER_ERROR : MONARCH_DAMAGED);
        SAME(job->result.error, how == A_LINK ? ELOOP : how == GONE ? ENOENT : 0);
        SAME(open_descriptors(), before);
        unlink(COPY_NAME);
        rmdir(COPY_NAME);
        done_with(e, job);
    }
}

static void shorten(void) { CHECK(truncate(COPY_NAME, 2 * BLOCK) == 0); }

/* A copy that becomes shorter while it is checked is damaged, even if no read fails. */
TEST(a_check_finds_a_copy_that_is_shortened_meanwhile_damaged) {
    struct monarch_engine *e = make_engine(BLOCK);
    struct job *job = order(e, MONARCH_CHECK, 3 * BLOCK);
    after_fstat = shorten;
    monarch_do_upkeep(e, job, buffer);
    SAME(job->result.status, MONARCH_DAMAGED);
    done_with(e, job);
}

/* If the engine stops, a check is abandoned, and nothing is known of the copy. */
TEST(a_check_that_is_abandoned_finds_no_damage) {
    struct monarch_engine *e = make_engine(BLOCK);
    struct job *job = order(e, MONARCH_CHECK, 3 * BLOCK);
    e->stopping = 1;
    monarch_do_upkeep(e, job, buffer);
    SAME(job->result.status, MONARCH_ABANDONED);
    done_with(e, job);
}

/* A comparison reads the file at the source, counts the bytes that it reads, and finds out whether
 * their checksum is still that of the copy. If the file no longer has the attributes in the
 * catalog, it has changed and is not read. */
TEST(a_comparison_asks_the_source) {
    const int status[] = {[A_BYTE] = MONARCH_SOURCE_CHANGED, [SHORTER] = MONARCH_SOURCE_CHANGED,
                          [LONGER] = MONARCH_SOURCE_CHANGED, [GONE] = MONARCH_SOURCE_CHANGED,
                          [A_LINK] = MONARCH_SOURCE_CHANGED, [NONE] = MONARCH_DONE};
    const enum damage ways[] = {A_BYTE, SHORTER, LONGER, GONE, A_LINK, NONE};
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct monarch_engine *e = make_engine(BLOCK);
        struct job *job = order(e, MONARCH_COMPARE, 2 * MONARCH_CHUNK + 1);
        unlink(COPY_NAME);
        damage(ways[i], "file", 2 * MONARCH_CHUNK + 1);
        int before = open_descriptors();
        monarch_do_upkeep(e, job, buffer);
        SAME(job->result.status, status[ways[i]]);
        SAME(job->result.error, ways[i] == GONE ? ENOENT : ways[i] == A_LINK ? ELOOP : 0);
        SAME(e->counts[MONARCH_BYTES], ways[i] == NONE ? 2 * MONARCH_CHUNK + 1 : 0);
        SAME(open_descriptors(), before);
        unlink("file");
        done_with(e, job);
    }
}

/* Reads of a copy are not limited. Reads of the source count against the limits of the source. */
TEST(only_a_comparison_obeys_the_limits_of_the_source) {
    const enum monarch_job_kind kinds[] = {MONARCH_CHECK, MONARCH_COMPARE};
    for (int i = 0; i < 2; i++) {
        struct monarch_engine *e = make_engine(BLOCK);
        struct job *job = order(e, kinds[i], 3 * BLOCK);
        e->bytes_per_s = 1000000000000;
        monarch_do_upkeep(e, job, buffer);
        SAME(job->result.status, MONARCH_DONE);
        SAME(e->next_byte_ns > 0, i);
        done_with(e, job);
    }
}

/* If the attributes of the file agree with the catalog, but its bytes differ from those of the
 * copy, the copy is damaged. */
TEST(a_comparison_finds_other_bytes) {
    struct monarch_engine *e = make_engine(BLOCK);
    struct job *job = order(e, MONARCH_COMPARE, BLOCK);
    job->expected_sum++;
    monarch_do_upkeep(e, job, buffer);
    SAME(job->result.status, MONARCH_DAMAGED);
    SAME(job->result.sum, job->expected_sum - 1);
    done_with(e, job);
}

/* A file has changed if it is shorter than its attributes showed when it was opened. If a file
 * cannot be read, this is an error of the source. */
TEST(a_comparison_notices_that_the_file_ends_early) {
    struct monarch_engine *e = make_engine(BLOCK);
    struct job *job = order(e, MONARCH_COMPARE, 2 * BLOCK);
    uint64_t sum;
    int fd = open("file", O_RDONLY | O_CLOEXEC);
    CHECK(truncate("file", BLOCK + 1) == 0);
    SAME(sum_of(e, job, fd, buffer, &sum), -1);
    SAME(job->result.status, MONARCH_SOURCE_CHANGED);
    close(fd);
    fd = open("file", O_WRONLY | O_CLOEXEC);
    SAME(sum_of(e, job, fd, buffer, &sum), -1);
    SAME(job->result.status, MONARCH_SOURCE_ERROR);
    SAME(job->result.error, EBADF);
    close(fd);
    done_with(e, job);
}

/* A drop removes the copy. If the copy is gone already, or a directory has the copy's name, no copy
 * that takes room is left. */
TEST(a_drop_removes_the_copy) {
    const enum damage ways[] = {NONE, GONE, A_DIRECTORY};
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct monarch_engine *e = make_engine(BLOCK);
        struct job *job = order(e, MONARCH_DROP, 100);
        damage(ways[i], COPY_NAME, 100);
        monarch_do_upkeep(e, job, buffer);
        SAME(job->result.status, MONARCH_DONE);
        SAME(job->result.left, 0);
        SAME(access(COPY_NAME, F_OK), ways[i] == A_DIRECTORY ? 0 : -1);
        CHECK(access("file", F_OK) == 0);
        done_with(e, job);
    }
}

/* A copy that cannot be removed still takes room. So the result reports to the daemon why the copy
 * was not removed. */
TEST(a_drop_tells_why_a_copy_is_left) {
    struct monarch_engine *e = make_engine(BLOCK);
    struct job *job = order(e, MONARCH_DROP, 100);
    close(here);
    job->copies = here = open("file", O_RDONLY | O_CLOEXEC);
    monarch_do_upkeep(e, job, buffer);
    SAME(job->result.left, ENOTDIR);
    done_with(e, job);
}

static int pages_of(const char *name, uint64_t size) {
    int fd = open(name, O_RDONLY | O_CLOEXEC), n = 0;
    for (uint64_t at = 0; at < size; at += MONARCH_PAGE_BYTES)
        n += is_cached(fd, at, MONARCH_PAGE_BYTES);
    close(fd);
    return n;
}

/* A PAGE_IN reads a copy into memory part by part. It counts as unfinished until the last part is
 * read. */
TEST(a_copy_is_read_in_parts) {
    const uint64_t size = 2 * PART_BYTES + MONARCH_CHUNK + 1;
    struct monarch_engine *e = make_engine(BLOCK);
    struct job *job = order(e, MONARCH_PAGE_IN, size);
    int before = open_descriptors();
    monarch_do_upkeep(e, job, buffer);
    SAME(job->result.status, MONARCH_ABANDONED);
    SAME(job->result.bytes, PART_BYTES);
    monarch_do_upkeep(e, job, buffer);
    SAME(job->result.status, MONARCH_ABANDONED);
    SAME(job->result.bytes, 2 * PART_BYTES);
    monarch_do_upkeep(e, job, buffer);
    SAME(job->result.status, MONARCH_DONE);
    SAME(job->result.bytes, size);
    SAME(open_descriptors(), before);
    done_with(e, job);
}

/* After a PAGE_IN, all pages of the copy are in memory. */
TEST(a_copy_that_was_read_is_in_memory) {
    const uint64_t size = MONARCH_CHUNK + 3 * MONARCH_PAGE_BYTES;
    struct monarch_engine *e = make_engine(BLOCK);
    struct job *job = order(e, MONARCH_PAGE_IN, size);
    int fd = open(COPY_NAME, O_RDWR | O_CLOEXEC);
    CHECK(fsync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
    close(fd);
    monarch_do_upkeep(e, job, buffer);
    SAME(pages_of(COPY_NAME, size), size / MONARCH_PAGE_BYTES);
    done_with(e, job);
}

/* A range of bytes counts as in memory only if all of its pages are in memory. */
TEST(a_single_page_that_is_missing_is_noticed) {
    const uint64_t size = MONARCH_CHUNK;
    int fd = make_file("file", size, 1);
    SAME(is_cached(fd, 0, size), 1);
    SAME(is_cached(fd, 0, 100), 1);
    CHECK(fsync(fd) == 0 && posix_fadvise(fd, size - MONARCH_PAGE_BYTES, MONARCH_PAGE_BYTES,
                                          POSIX_FADV_DONTNEED) == 0);
    int is_kept = pages_of("file", size) == size / MONARCH_PAGE_BYTES; /* tmpfs keeps all */
    SAME(is_cached(fd, 0, size), is_kept);
    SAME(is_cached(fd, 0, size - MONARCH_PAGE_BYTES), 1);
    SAME(is_cached(fd, size - MONARCH_PAGE_BYTES, 1), is_kept);
    close(fd);
    fd = open("file", O_WRONLY | O_CLOEXEC);
    SAME(is_cached(fd, 0, size), 0); /* it cannot be mapped */
    close(fd);
}

/* If a copy cannot be read to its end, a PAGE_IN ends with the tier's error. */
TEST(a_copy_that_is_shorter_or_gone_fails) {
    struct monarch_engine *e = make_engine(BLOCK);
    struct job *job = order(e, MONARCH_PAGE_IN, 2 * MONARCH_CHUNK);
    CHECK(truncate(COPY_NAME, MONARCH_CHUNK) == 0);
    int fd = open(COPY_NAME, O_RDWR | O_CLOEXEC);
    CHECK(fsync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
    close(fd);
    monarch_do_upkeep(e, job, buffer);
    SAME(job->result.status, MONARCH_TIER_ERROR);
    SAME(job->result.error, EIO);
    SAME(job->result.bytes, MONARCH_CHUNK);
    job->result.bytes = job->result.error = 0;
    CHECK(unlink(COPY_NAME) == 0);
    monarch_do_upkeep(e, job, buffer);
    SAME(job->result.status, MONARCH_TIER_ERROR);
    SAME(job->result.error, ENOENT);
    job->result.error = 0;
    CHECK(mkdir(COPY_NAME, 0700) == 0);
    monarch_do_upkeep(e, job, buffer);
    SAME(job->result.error, EISDIR);
    done_with(e, job);
}

/* A file is read in several steps, up to the size that it had when the order was made. If the file
 * now ends exactly where a step begins, the step reads 0 bytes. This counts as a change of the
 * file, just as if the file ended within a step. */
TEST(a_file_that_ends_between_two_reads_has_changed) {
    const off_t ends[] = {0, 1, MONARCH_CHUNK - 1, MONARCH_CHUNK, MONARCH_CHUNK + 1};
    for (int kind = MONARCH_CHECK; kind <= MONARCH_COMPARE; kind++)
        for (int i = 0; i < 5; i++) {
            struct monarch_engine *e = make_engine(BLOCK * 32);
            struct job *job = order(e, (enum monarch_job_kind)kind, 2 * MONARCH_CHUNK);
            uint64_t sum = 77;
            int fd = open("file", O_RDWR | O_CLOEXEC);
            CHECK(ftruncate(fd, ends[i]) == 0);
            SAME(sum_of(e, job, fd, buffer, &sum), -1);
            SAME(job->result.status, MONARCH_SOURCE_CHANGED);
            SAME(sum, 77);
            close(fd);
            done_with(e, job);
        }
}

/* Upkeep works with descriptor 0 as with any other, and closes it. */
TEST(upkeep_may_have_descriptor_zero) {
    const enum monarch_job_kind kinds[] = {MONARCH_CHECK, MONARCH_COMPARE, MONARCH_PAGE_IN};
    for (int i = 0; i < 3; i++) {
        struct monarch_engine *e = make_engine(BLOCK);
        struct job *job = order(e, kinds[i], 100);
        struct stat st;
        uint64_t sum, bytes;
        int high = fcntl(here, F_DUPFD_CLOEXEC, 10);
        CHECK(here == 0 && fstat(here, &st) == 0);
        e->control->source[0].dev = st.st_dev;
        close(here);
        here = job->copies = job->source_root = high;
        monarch_do_upkeep(e, job, buffer);
        SAME(job->result.status, MONARCH_DONE);
        SAME(fcntl(0, F_GETFD), -1);
        SAME(monarch_sum_file("file", BLOCK, &sum, &bytes), 0);
        CHECK(sum == job->expected_sum && bytes == 100);
        SAME(fcntl(0, F_GETFD), -1);
        done_with(e, job);
    }
}
