#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/utsname.h>

#include "shared/clock.h"
#include "short_io.h"

/* The kernel's version that uname reports to source_file.c. If NULL, uname fails. */
static const char *release;
static int told_uname(struct utsname *u) {
    if (release)
        strcpy(u->release, release);
    return release ? 0 : -1;
}
/* If not 0, the clock advances by this time [ns] whenever it is read. If 0, the real clock is
 * read. */
static uint64_t between_ns;
static uint64_t told_ns(void) {
    static uint64_t now_ns = 1;
    return between_ns ? now_ns += between_ns : monarch_now_ns();
}
/* Whether opens with O_NOATIME are refused, as for a file of another user. */
static int refuses_noatime;
static int open_at(int root, const char *path, int flags) {
    errno = EPERM;
    return refuses_noatime && flags & O_NOATIME ? -1 : openat(root, path, flags);
}
#define openat open_at
#define uname told_uname
#define monarch_now_ns told_ns
#include "copy/source_file.c"
#undef monarch_now_ns
#undef uname
#undef openat

#include "checks.h"
#include "shared/buffer.h"

static struct monarch_engine *e;
static struct job *job;
static int root;
static char buffer[MONARCH_CHUNK] __attribute__((aligned(MONARCH_PAGE_BYTES)));

static void make(uint64_t size) {
    e = make_engine(4 * MONARCH_CHUNK);
    root = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    unlink("file");
    close(make_file("file", size, 7));
    job = make_job(root, root, "file", 1);
    struct stat st;
    CHECK(fstat(root, &st) == 0);
    e->control->source[0].dev = st.st_dev;
}

static void done(void) {
    close(root);
    free(job);
    free_engine(e);
}

/* --- limits ----------------------------------------------------------------------------------- */

#define MS 1000000ULL

/* Each reserved span of time begins where the previous span ends, and is as long as the rate
 * demands. */
TEST(a_rate_reserves_one_span_after_the_other) {
    const uint64_t rates[][2] = {{1, 1}, {1, 1000}, {3, 7}, {1ULL << 40, 3ULL << 30}};
    for (unsigned i = 0; i < sizeof rates / sizeof *rates; i++) {
        uint64_t later = monarch_now_ns() + 1000000 * MS, next = later;
        uint64_t span = (uint64_t)((__float128)rates[i][0] * 1000000000 / rates[i][1]);
        SAME(take_span(&next, rates[i][0], rates[i][1]), later);
        SAME(next, later + span);
        SAME(take_span(&next, rates[i][0], rates[i][1]), later + span);
        SAME(next, later + 2 * span);
    }
}

/* If nobody reserves any time for a while, the unused time is lost, except for the last 20 ms. */
TEST(at_most_twenty_milliseconds_are_made_up_for) {
    uint64_t next = 5, before = monarch_now_ns();
    uint64_t begin = take_span(&next, 1, 1000), after = monarch_now_ns();
    CHECK(begin >= before - 20 * MS && begin <= after - 20 * MS);
    SAME(next, begin + MS);
    uint64_t recent = next = monarch_now_ns() + 5 * MS;
    /* If the next free time lies in the future, the span begins there. */
    SAME(take_span(&next, 1, 1000), recent);
}

/* Without a limit, no time is reserved. An operation without bytes reserves no time for bytes. */
TEST(each_limit_reserves_its_own_span) {
    make(1);
    monarch_acquire_rate(e, 100);
    CHECK(!e->next_op_ns && !e->next_byte_ns);
    e->ops_per_s = e->bytes_per_s = 1000000000;
    monarch_acquire_rate(e, 0);
    CHECK(e->next_op_ns && !e->next_byte_ns);
    uint64_t op = e->next_op_ns = monarch_now_ns();
    monarch_acquire_rate(e, 64);
    SAME(e->next_op_ns, op + 1);
    uint64_t byte = e->next_byte_ns = monarch_now_ns();
    monarch_acquire_rate(e, 64);
    SAME(e->next_byte_ns, byte + 64);
    done();
}

/* sleep_until returns at the given time. Once the engine stops, it returns at once. */
TEST(a_limit_delays_the_caller_until_the_engine_stops) {
    make(1);
    uint64_t until = monarch_now_ns() + 3 * MS;
    sleep_until(e, until);
    CHECK(monarch_now_ns() >= until);
    e->stopping = 1;
    sleep_until(e, monarch_now_ns() + 100000 * MS);
    done();
}

/* --- the file --------------------------------------------------------------------------------- */

/* A descriptor belongs to the catalog's file only if the kind, the inode number, the size, the
 * mtime and the ctime agree. */
TEST(each_attribute_that_differs_shows_another_file) {
    make(5000);
    int fd = open("file", O_RDONLY | O_CLOEXEC), status;
    struct monarch_entry right = job->entry;
    for (int field = 0; field < 5; field++) {
        struct monarch_entry *is = &job->entry;
        *is = right;
        SAME(monarch_source_is_unchanged(job, fd), 0);
        is->ino += field == 0;
        is->size += field == 1;
        is->mtime_ns += field == 2;
        is->ctime_ns += field == 3;
        int other = field == 4 ? root : fd;
        job->result.status = MONARCH_ABANDONED;
        SAME(monarch_source_is_unchanged(job, other), -1);
        SAME(job->result.status, MONARCH_SOURCE_CHANGED);
        if (field < 4) {
            int before = open_descriptors();
            errno = EINVAL;
            SAME(monarch_open_source(e, job, &status), -1);
            SAME(status, MONARCH_SOURCE_CHANGED);
            SAME(errno, 0);
            SAME(open_descriptors(), before);
        }
    }
    SAME(e->endpoint[0].busy, 0); /* no visit is left */
    close(fd);
    done();
}

/* If the name is gone or has become a link, the file has changed. Any other failure is an error of
 * the source. */
TEST(a_file_that_cannot_be_opened_is_gone_or_the_source_fails) {
    make(10);
    int status;
    CHECK(unlink("file") == 0);
    SAME(monarch_open_source(e, job, &status), -1);
    SAME(status, MONARCH_SOURCE_CHANGED);
    SAME(errno, ENOENT);
    CHECK(symlink("nothing", "file") == 0);
    SAME(monarch_open_source(e, job, &status), -1);
    SAME(status, MONARCH_SOURCE_CHANGED);
    SAME(errno, ELOOP);
    int own = job->source_root;
    job->source_root = -1;
    SAME(monarch_open_source(e, job, &status), -1);
    SAME(status, MONARCH_SOURCE_ERROR);
    SAME(errno, EBADF);
    job->source_root = own;
    SAME(e->endpoint[0].busy, 0);
    done();
}

/* If O_NOATIME is refused, the file is opened without it. */
TEST(a_file_of_another_user_is_opened_too) {
    make(10);
    int status;
    for (refuses_noatime = 0; refuses_noatime < 2; refuses_noatime++) {
        int fd = monarch_open_source(e, job, &status);
        CHECK(fd >= 0);
        SAME((fcntl(fd, F_GETFL) & O_NOATIME) != 0, !refuses_noatime);
        close(fd);
    }
    refuses_noatime = 0;
    done();
}

TEST(only_a_regular_file_has_an_inode_to_hand_over) {
    make(10);
    struct stat st;
    uint64_t dev = 0;
    CHECK(stat("file", &st) == 0);
    int fd = open("file", O_RDONLY | O_CLOEXEC), null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    SAME(monarch_inode_of(fd, &dev), st.st_ino);
    SAME(dev, st.st_dev);
    SAME(monarch_inode_of(null, &dev), 0);
    SAME(monarch_inode_of(root, &dev), 0);
    SAME(monarch_inode_of(-1, &dev), 0);
    close(fd);
    close(null);
    done();
}

/* The source has limits for operations and for bytes. An open counts as one operation and as zero
 * bytes. */
TEST(an_open_is_an_operation_of_the_limit) {
    make(10);
    int status;
    e->ops_per_s = e->bytes_per_s = 1000000000;
    uint64_t op = e->next_op_ns = monarch_now_ns();
    close(monarch_open_source(e, job, &status));
    SAME(e->next_op_ns, op + 1);
    SAME(e->next_byte_ns, 0);
    done();
}

/* Kernels before 6.16 may drop a page that another process has just written. So pages are dropped
 * only with later kernels. */
TEST(pages_are_dropped_only_by_kernels_that_do_it_safely) {
    const struct {
        const char *release;
        int can;
    } known[] = {{"6.16.0-rc1", 1}, {"6.15.9", 0}, {"6.17", 1}, {"7.0.1", 1}, {"5.99.1", 0},
                 {"6.1.0", 0},      {"4.18", 0},   {"six", 0},  {"7", 0},     {NULL, 0}};
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++) {
        release = known[i].release;
        SAME(monarch_can_drop_behind(), known[i].can);
    }
}

/* --- how fast the sources are ----------------------------------------------------------------- */

/* For each file of a source, `note` is told whether the file had a certain property. The bit of the
 * source is set while more than half of its recent files had the property. The bits of other
 * sources do not change. */
TEST(a_bit_follows_the_majority_of_recent_files) {
    uint32_t mean = 0, bits = 1U << 3 | 1U << 5;
    int n = 0;
    for (; !(bits & 1U << 4); n++)
        note(&mean, &bits, 4, 1);
    CHECK(n > (int)SHARE_STEP / 2 && n < (int)SHARE_STEP); /* about ln 2 times SHARE_STEP */
    SAME(bits, 1U << 3 | 1U << 4 | 1U << 5);
    CHECK(mean > SHARE_ALL / 2);
    for (int i = 0; i < 1000; i++)
        note(&mean, &bits, 4, 1);
    CHECK(mean <= SHARE_ALL && mean > SHARE_ALL - SHARE_STEP);
    for (n = 0; bits & 1U << 4; n++)
        note(&mean, &bits, 4, 0);
    CHECK(n > (int)SHARE_STEP / 2 && n < (int)SHARE_STEP);
    SAME(bits, 1U << 3 | 1U << 5);
    CHECK(mean <= SHARE_ALL / 2);
    for (int i = 0; i < 1000; i++)
        note(&mean, &bits, 4, 0);
    CHECK(mean < SHARE_STEP);
}

/* If exactly one half of a source's recent files had the property, `note` does not set the source's
 * bit. */
TEST(one_half_is_no_majority) {
    uint32_t mean = SHARE_ALL / 2 - SHARE_ALL / SHARE_STEP, bits = 0;
    mean += mean / SHARE_STEP + 1;
    while (mean - mean / SHARE_STEP + SHARE_ALL / SHARE_STEP > SHARE_ALL / 2)
        mean--;
    SAME(mean - mean / SHARE_STEP + SHARE_ALL / SHARE_STEP, SHARE_ALL / 2);
    note(&mean, &bits, 0, 1);
    SAME(mean, SHARE_ALL / 2);
    SAME(bits, 0);
}

/* A source is fast if fills read most of its files in less than FAST_NS. Programs rely on this
 * judgement only after JUDGED files of the source have been filled. */
TEST(a_source_is_judged_after_enough_fills) {
    make(1);
    for (unsigned i = 1; i < JUDGED; i++)
        monarch_note_speed(e, 2, FAST_NS - 1);
    SAME(e->control->judged_sources, 0);
    SAME(e->control->fast_sources, 1U << 2);
    monarch_note_speed(e, 2, FAST_NS - 1);
    SAME(e->control->judged_sources, 1U << 2);
    for (unsigned i = 0; i < 2 * JUDGED; i++)
        monarch_note_speed(e, 2, FAST_NS);
    SAME(e->control->fast_sources, 0);
    for (unsigned i = 0; i < JUDGED; i++)
        monarch_note_pages(e, 1, 1);
    SAME(e->control->pageless_sources, 1U << 1);
    SAME(e->control->judged_sources, 1U << 2);
    done();
}

/* --- direct I/O ------------------------------------------------------------------------------- */

/* A file is read directly only if it has one unit, is large enough, is read as a whole, and is not
 * in use. */
TEST(direct_reads_are_for_whole_files_of_one_unit) {
    make(DIRECT_BYTES);
    struct fill f = {.job = job, .units = 1};
    SAME(may_read_directly(&f, DIRECT_BYTES), 1);
    SAME(may_read_directly(&f, DIRECT_BYTES - 1), 0);
    SAME(may_read_directly(&f, DIRECT_BYTES + 1), 0);
    job->entry.size = DIRECT_BYTES - 1;
    SAME(may_read_directly(&f, DIRECT_BYTES - 1), 0);
    job->entry.size = DIRECT_BYTES + 1;
    SAME(may_read_directly(&f, DIRECT_BYTES + 1), 1);
    f.units = 2;
    SAME(may_read_directly(&f, DIRECT_BYTES + 1), 0);
    f.units = 1;
    job->result.in_use = 1;
    SAME(may_read_directly(&f, DIRECT_BYTES + 1), 0);
    done();
}

/* If reads of a source usually have to wait, its files are read directly, except one file in
 * PROBED, which is read through the page cache. No file is read directly if its source refused
 * O_DIRECT, or if the daemon must not use O_DIRECT. */
TEST(every_probed_file_is_read_through_the_page_cache) {
    make(1);
    int direct = 0;
    for (unsigned i = 0; i < 3 * PROBED; i++)
        direct += is_direct_better(e, 1);
    SAME(direct, 0);
    SAME(e->awaited_files[1], 0);
    e->awaited_sources = 1U << 1;
    for (unsigned i = 0; i < 3 * PROBED; i++)
        direct += is_direct_better(e, 1) != 0;
    SAME(direct, 3 * (PROBED - 1));
    SAME(is_direct_better(e, 0), 0);
    e->buffered_sources = 1U << 1;
    SAME(is_direct_better(e, 1), 0);
    monarch_engine_direct_io(e, 1);
    SAME(e->buffered_sources, 0);
    monarch_engine_direct_io(e, 0);
    SAME(e->buffered_sources, UINT32_MAX);
    done();
}

/* A direct read reads the complete file, even if the file ends within a block, and leaves the flags
 * of the descriptor unchanged. If the file is too short, the read fails. */
TEST(a_direct_read_brings_all_bytes) {
    const uint64_t sizes[] = {DIRECT_ROUND, DIRECT_ROUND + 1, 5 * DIRECT_ROUND - 1};
    for (unsigned i = 0; i < 3; i++) {
        make(sizes[i]);
        int fd = open("file", O_RDONLY | O_CLOEXEC), flags = fcntl(fd, F_GETFL);
        memset(buffer, 0, sizes[i]);
        if (read_directly(fd, buffer, sizes[i]))
            check_bytes(7, 0, 0, buffer, sizes[i]);
        SAME(fcntl(fd, F_GETFL), flags);
        SAME(read_directly(fd, buffer, sizes[i] + 1), 0);
        SAME(fcntl(fd, F_GETFL), flags);
        SAME(read_directly(-1, buffer, sizes[i]), 0);
        close(fd);
        done();
    }
}

/* A read that fails both with O_DIRECT and without it does not show that the source refuses
 * O_DIRECT. No bytes are counted. */
TEST(a_source_that_refuses_direct_reads_is_not_asked_again) {
    make(DIRECT_BYTES + 1);
    int pipes[2];
    CHECK(pipe2(pipes, O_CLOEXEC) == 0);
    struct fill f = {.job = job, .units = 1, .from = -1};
    e->awaited_sources = 1;
    /* a pipe cannot be read at an offset, with or without O_DIRECT */
    SAME(read_from_source(e, &f, pipes[0], buffer, DIRECT_BYTES + 1, 0), -ESPIPE);
    SAME(e->buffered_sources, 0);
    SAME(e->counts[MONARCH_BYTES], 0);
    SAME(e->fills->source_ns, 0);
    close(pipes[0]);
    close(pipes[1]);
    done();
}

/* The bytes of a complete read are added once to the counter of bytes, and once to the flow of the
 * source. The time of the source's last answer is noted. If a read ends early, nothing is
 * counted. */
TEST(bytes_of_a_source_are_counted_once) {
    make(100000);
    struct fill f = {.job = job, .units = 1, .from = -1};
    int fd = open("file", O_RDONLY | O_CLOEXEC);
    uint64_t before = monarch_now_ns();
    SAME(monarch_read_part(e, &f, fd, buffer, 60000, 40000), 60000);
    check_bytes(7, 0, 40000, buffer, 60000);
    SAME(e->counts[MONARCH_BYTES], 60000);
    SAME(e->endpoint[0].flow.bytes[0], 60000);
    SAME(e->endpoint[0].busy, 0);
    CHECK(e->fills->source_ns >= before);
    CHECK(f.source_ns > 0);
    uint64_t took = f.source_ns;
    f.units = 2;
    SAME(monarch_read_part(e, &f, fd, buffer, 60000, 40001), 59999); /* the file ends */
    SAME(e->counts[MONARCH_BYTES], 60000);
    SAME(f.source_ns, took);
    close(fd);
    done();
}

/* Some reads that could be direct go through the page cache. For each such read, the engine notes
 * whether the read waited for the source: a read that takes CACHED_NS or longer has waited. */
TEST(a_read_through_the_page_cache_tells_whether_it_waited) {
    make(DIRECT_BYTES);
    struct fill f = {.job = job, .units = 1, .from = -1};
    int fd = open("file", O_RDONLY | O_CLOEXEC);
    for (int waited = 0; waited < 2; waited++) {
        between_ns = CACHED_NS - !waited;
        f.source_ns = 0;
        e->awaited[0] = SHARE_ALL / 2;
        e->awaited_sources = e->awaited_files[0] = 0;
        SAME(read_from_source(e, &f, fd, buffer, DIRECT_BYTES, 0), DIRECT_BYTES);
        SAME(e->awaited_sources, waited);
        CHECK(waited ? e->awaited[0] > SHARE_ALL / 2 : e->awaited[0] < SHARE_ALL / 2);
        SAME(f.source_ns, between_ns);
        /* this read would be direct, but every PROBED-th read goes through the page cache */
        e->awaited_sources = 1;
        e->awaited_files[0] = PROBED - 1;
        e->awaited[0] = SHARE_ALL;
        read_from_source(e, &f, fd, buffer, DIRECT_BYTES, 0);
        SAME(e->awaited[0], waited ? SHARE_ALL : SHARE_ALL - SHARE_STEP);
        SAME(e->buffered_sources, 0);
        /* a read of a part of the file is not noted */
        e->awaited[0] = 7 * SHARE_STEP;
        read_from_source(e, &f, fd, buffer, DIRECT_BYTES - 1, 0);
        SAME(e->awaited[0], 7 * SHARE_STEP);
    }
    between_ns = 0;
    close(fd);
    done();
}

/* A direct read is not counted among the reads that wait for the source. If it is refused, it is
 * repeated through the page cache, and the source is not asked for direct reads again. */
TEST(a_refused_direct_read_is_made_again) {
    make(DIRECT_BYTES);
    struct fill f = {.job = job, .units = 1, .from = -1};
    int fd = open("file", O_RDONLY | O_CLOEXEC);
    e->awaited_sources = 1;
    e->awaited[0] = 8 * SHARE_STEP;
    int works = read_directly(fd, buffer, DIRECT_BYTES);
    memset(buffer, 0, DIRECT_BYTES);
    between_ns = 1;
    SAME(read_from_source(e, &f, fd, buffer, DIRECT_BYTES, 0), DIRECT_BYTES);
    between_ns = 0;
    check_bytes(7, 0, 0, buffer, DIRECT_BYTES);
    SAME(e->buffered_sources, !works);
    SAME(e->awaited[0], works ? 8 * SHARE_STEP : 8 * SHARE_STEP - 8);
    close(fd);
    done();
}

/* Even if reads are interrupted or short, all bytes of the range are read, and no others. */
TEST(interrupted_reads_bring_all_bytes) {
    make(50000);
    int fd = open("file", O_RDONLY | O_CLOEXEC);
    most_moved = 777;
    for (int kept = 0; kept < 2; kept++) {
        memset(buffer, 0, 20000);
        e->kept_sources = (uint32_t)kept;
        SAME(monarch_read_fully(fd, buffer, 20000, 10000), 20000);
        check_bytes(7, 0, 10000, buffer, 20000);
        SAME(buffer[20000], 0);
        SAME(monarch_read_source(e, job, fd, buffer, 20000, 10001), 20000);
        check_bytes(7, 0, 10001, buffer, 20000);
        SAME(monarch_read_fully(fd, buffer, 2000, 49000), 1000);
    }
    most_moved = 0;
    close(fd);
    done();
}

/* If the kernel cannot drop pages after a read, the engine notes this for the source, and the read
 * succeeds all the same. A failed read does not show whether the kernel can drop pages. */
TEST(reads_bring_all_bytes_whether_pages_are_kept_or_not) {
    make(100000);
    job->entry.source = 3;
    int fd = open("file", O_RDONLY | O_CLOEXEC);
    for (int kept = 0; kept < 2; kept++) {
        e->kept_sources = kept ? 1U << 3 : 0;
        SAME(monarch_drops_behind(e, job), !kept);
        memset(buffer, 0, 100000);
        SAME(monarch_read_source(e, job, fd, buffer, 99999, 1), 99999);
        check_bytes(7, 0, 1, buffer, 99999);
        SAME(monarch_read_source(e, job, fd, buffer, 10, 99995), 5);
        SAME(monarch_read_source(e, job, fd, buffer, 10, 100000), 0);
        SAME(e->kept_sources & ~(1U << 3), 0);
    }
    e->kept_sources = 0;
    SAME(monarch_read_source(e, job, -1, buffer, 10, 0), -EBADF);
    SAME(e->kept_sources, 0);
    SAME(monarch_read_fully(fd, buffer, 10, 99995), 5);
    SAME(monarch_read_fully(-1, buffer, 10, 0), -EBADF);
    close(fd);
    job->entry.source = 0;
    done();
}

/* --- the descriptor of a fill ----------------------------------------------------------------- */

/* Sets a claim for the order's file, and gives the order a descriptor as if a program had handed it
 * over. Returns the descriptor. */
static int hand(int flags) {
    job->claim = 11;
    CHECK(monarch_begin_claim(e->clients, 11));
    job->handed = open("file", flags | O_CLOEXEC);
    CHECK(job->handed >= 0);
    return job->handed;
}

static int is_claimed(void) { return e->clients->claim[11] != 0; }

/* A handed-over descriptor is used if it is open only for reading, is open without O_DIRECT, and
 * belongs to the catalog's file. Otherwise the daemon closes it, ends the claim, and opens the file
 * itself. */
TEST(only_a_usable_descriptor_is_taken) {
    for (int way = 0; way < 7; way++) {
        const int flags[] = {O_RDONLY, O_RDWR, O_WRONLY, O_PATH, O_RDONLY, O_RDONLY, O_RDONLY};
        make(5000);
        int status, handed = hand(flags[way]), before = open_descriptors();
        if (way == 4)
            e->control->source[0].dev++;
        if (way == 5) {
            close(handed);
            handed = job->handed = open("/dev/null", O_RDONLY | O_CLOEXEC);
        }
        if (way == 6 && fcntl(handed, F_SETFL, O_DIRECT) != 0)
            SAME(errno, EINVAL); /* a file system without O_DIRECT */
        int is_usable_here = way == 0 || (way == 6 && !(fcntl(handed, F_GETFL) & O_DIRECT));
        int fd = monarch_take_source(e, job, &status);
        CHECK(fd >= 0);
        SAME(job->handed >= 0, is_usable_here);
        SAME(monarch_is_handed(job), is_usable_here);
        SAME(is_claimed(), is_usable_here);
        SAME(open_descriptors(), before);
        monarch_close_source(e, job, fd);
        SAME(open_descriptors(), before - 1);
        SAME(job->handed, -1);
        SAME(is_claimed(), 0);
        monarch_close_handed(e, job); /* does nothing: the order has no descriptor any more */
        SAME(open_descriptors(), before - 1);
        done();
    }
}

/* Only the close of the descriptor that was handed over ends the claim. The close of another
 * descriptor of the order does not. */
TEST(the_claim_ends_with_the_descriptor_that_was_handed_over) {
    make(10);
    hand(O_RDONLY);
    int other = open("file", O_RDONLY | O_CLOEXEC);
    monarch_close_source(e, job, other);
    CHECK(job->handed >= 0 && is_claimed());
    monarch_close_handed(e, job);
    CHECK(job->handed < 0 && !is_claimed());
    done();
}

/* A program can recall a descriptor that it has handed over. The daemon then opens the file itself,
 * and replaces the program's descriptor with the new one. This closes the program's descriptor at
 * once, and the fill continues with the same descriptor number. Without a recall, nothing
 * changes. */
TEST(a_recalled_descriptor_is_replaced_under_its_number) {
    make(5000);
    int status, handed = hand(O_RDONLY), before = open_descriptors();
    struct fill f = {.job = job, .units = 1, .from = handed};
    SAME(monarch_give_back_recalled(e, &f, handed, &status), 0);
    CHECK(job->handed == handed && is_claimed() && f.source_ns == 0);
    /* the offset shows whether `handed` still refers to the program's open file */
    CHECK(lseek(handed, 100, SEEK_SET) == 100);
    e->clients->claim[11] |= MONARCH_CLAIM_RECALLED;
    SAME(monarch_give_back_recalled(e, &f, handed, &status), 0);
    CHECK(job->handed == -1 && !is_claimed() && f.source_ns > 0);
    SAME(lseek(handed, 0, SEEK_CUR), 0);
    SAME(fcntl(handed, F_GETFD), FD_CLOEXEC);
    SAME(open_descriptors(), before);
    SAME(monarch_read_part(e, &f, handed, buffer, 5000, 0), 5000);
    SAME(e->counts[MONARCH_BYTES], 5000); /* read with the daemon's own descriptor */
    close(handed);
    done();
}

/* If the file can no longer be opened, the caller learns why and keeps the descriptor. */
TEST(a_recalled_descriptor_of_a_file_that_is_gone_fails_the_fill) {
    make(5000);
    int status = 0, handed = hand(O_RDONLY);
    struct fill f = {.job = job, .units = 1, .from = handed};
    e->clients->claim[11] |= MONARCH_CLAIM_RECALLED;
    CHECK(unlink("file") == 0);
    SAME(monarch_give_back_recalled(e, &f, handed, &status), -1);
    SAME(status, MONARCH_SOURCE_CHANGED);
    SAME(job->handed, handed);
    monarch_close_handed(e, job);
    done();
}

/* Bytes that are read from a handed-over descriptor usually come from the page cache. They count as
 * read from the source only if the thread slept during the read. */
TEST(bytes_that_a_program_has_just_read_are_not_counted) {
    make(60000);
    int handed = hand(O_RDONLY);
    struct fill f = {.job = job, .units = 1, .from = handed};
    SAME(monarch_read_part(e, &f, handed, buffer, 60000, 0), 60000);
    check_bytes(7, 0, 0, buffer, 60000);
    SAME(e->counts[MONARCH_BYTES], f.lacks_pages ? 60000 : 0);
    SAME(e->endpoint[0].flow.ns[0], 0);
    monarch_close_handed(e, job);
    done();
}

/* A fill opens its file only once, even if it asks for the descriptor again. */
TEST(a_fill_opens_its_file_once) {
    make(10);
    struct fill f = {.job = job, .units = 1, .from = -1};
    int status, before = open_descriptors(), fd = monarch_source_of(e, &f, &status);
    CHECK(fd >= 0 && f.from == fd);
    SAME(monarch_source_of(e, &f, &status), fd);
    SAME(open_descriptors(), before + 1);
    close(fd);
    f.from = -1;
    CHECK(unlink("file") == 0);
    SAME(monarch_source_of(e, &f, &status), -1);
    SAME(f.from, -1);
    SAME(status, MONARCH_SOURCE_CHANGED);
    done();
}
