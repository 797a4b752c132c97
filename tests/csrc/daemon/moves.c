/* Tests copy/fill.c: whatever fails, a unit is shown to readers only if all its bytes are in the
 * copy. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "copy/pack.h"
#include "copy/source_file.h"

/* The step of the fill that fails. at_part: the number of the read or write that fails, counted
 * from 0. */
enum step {
    NOTHING,
    STOPPED,  /* the engine stops before the source is opened */
    OPEN,     /* the file cannot be opened */
    STOPS,    /* the engine stops between two reads */
    OTHER,    /* another thread gives up the fill before a read */
    RECALL,   /* the program wants its descriptor back, and the file is gone */
    READ,     /* a read fails */
    SHORT,    /* the file is shorter than before */
    WRITE,    /* a write fails */
    FULL,     /* the tier is full */
    NO_WRITE, /* a write writes nothing */
    STEPS,
};
static enum step fails;
static int at_part, reads, writes, opens;
static struct fill *f;
static struct monarch_engine *e;
static int source_of(struct monarch_engine *of, struct fill *fill, int *status) {
    opens++;
    *status = MONARCH_SOURCE_ERROR;
    errno = EACCES;
    return fails == OPEN ? -1 : 0; /* 0 is a valid descriptor */
}
static int give_back_recalled(struct monarch_engine *of, struct fill *fill, int from, int *status) {
    if (fails == STOPS && reads + 1 == at_part)
        e->stopping = 1;
    if (fails == OTHER && reads == at_part)
        fill->failed = 1;
    *status = MONARCH_SOURCE_CHANGED;
    errno = ENOENT;
    return fails == RECALL && reads == at_part ? -1 : 0;
}
static ssize_t read_part(struct monarch_engine *of, struct fill *fill, int from, char *buffer,
                         uint64_t n, uint64_t at) {
    int is_it = reads++ == at_part;
    return fails == READ && is_it ? -EIO : fails == SHORT && is_it ? (ssize_t)n - 1 : (ssize_t)n;
}
static ssize_t write_at(int fd, const void *from, size_t n, off_t at) {
    int is_it = writes++ == at_part;
    errno = fails == FULL ? ENOSPC : fails == WRITE ? EROFS : EINTR; /* EINTR: an old error */
    return is_it && (fails == WRITE || fails == FULL) ? -1
           : is_it && fails == NO_WRITE               ? 0
                                                      : (ssize_t)n;
}
static int in_pack;
static int read_pack_of(struct monarch_engine *of, struct job *job, char *to) {
    return in_pack ? 0 : -1;
}
/* The copy is read to compute the sum of a block. If copy_read is negative, these reads fail.
 * Otherwise each read returns copy_read bytes too few. */
static int copy_read;
static ssize_t read_copy(int fd, char *to, size_t n, off_t at) {
    return copy_read < 0 ? -EIO : (ssize_t)n - copy_read;
}
#define monarch_source_of source_of
#define monarch_give_back_recalled give_back_recalled
#define monarch_read_part read_part
#define monarch_pack_read read_pack_of
#define monarch_read_fully read_copy
#define pwrite write_at
#include "copy/fill.c"
#undef pwrite

#include "checks.h"

static struct job *job;
static char buffer[MONARCH_CHUNK];
static int root;

/* Makes a fill for a file that has `size` bytes, all in one block. The fill has no descriptor of
 * the copy. */
static void make(uint64_t size) {
    e = make_engine(4 * MONARCH_CHUNK);
    root = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    unlink("file");
    close(make_file("file", 1, 7));
    job = make_job(root, root, "file", 0x77);
    job->entry.size = size;
    job->slot = 9;
    job->result.id = 5;
    f = new_fill(e, job);
    f->to = f->from = -1;
    e->clients->demand[1] = monarch_demand(5, 0, 2, 0);
    reads = writes = opens = in_pack = copy_read = 0;
}

static void done(void) {
    free(f->sums);
    free(f->digests);
    free(f);
    close(root);
    free(job);
    free_engine(e);
}

/* Checks whether the fill has shown its first `units` units to readers. */
static void check_shown(uint64_t units, int is_shown) {
    for (uint64_t u = 0; u < f->units; u++)
        SAME(f->map->done[u / 64] >> (u % 64) & 1, is_shown && u < units);
    SAME(e->fills->units, is_shown ? units : 0);
    SAME(e->clients->demand[1] == 0, is_shown); /* the reader that waits is answered */
    SAME(f->left[0], f->units - (is_shown ? units : 0));
}

/* If any step of a move fails, no unit of the move is shown, and the fill fails. It does not matter
 * whether the step fails at the first part of the bytes or at a later one. The fill's result says
 * why it has failed. Nothing is read or written after the failure. */
TEST(no_unit_is_shown_without_its_bytes) {
    const struct {
        int status, error;
    } right[STEPS] = {
        [STOPPED] = {MONARCH_ABANDONED, 0},    [OPEN] = {MONARCH_SOURCE_ERROR, EACCES},
        [STOPS] = {MONARCH_ABANDONED, 0},      [RECALL] = {MONARCH_SOURCE_CHANGED, ENOENT},
        [READ] = {MONARCH_SOURCE_ERROR, EIO},  [SHORT] = {MONARCH_SOURCE_CHANGED, 0},
        [WRITE] = {MONARCH_TIER_ERROR, EROFS}, [FULL] = {MONARCH_TIER_FULL, ENOSPC},
        [NO_WRITE] = {MONARCH_TIER_ERROR, EIO}};
    for (int way = NOTHING; way < STEPS; way++)
        for (at_part = 0; at_part < 3; at_part++) {
            make(3 * MONARCH_CHUNK + 5);
            fails = (enum step)way;
            e->stopping = way == STOPPED;
            uint64_t units = 3 * MONARCH_CHUNK / f->unit_bytes;
            if (way == STOPS && at_part == 0)
                e->stopping = 1;
            monarch_fill_move(e, f, 0, units, buffer, NULL);
            check_shown(units, way == NOTHING);
            SAME(f->failed, way != NOTHING);
            SAME(monarch_fill_is_over(f), way != NOTHING);
            if (way != NOTHING && way != OTHER) {
                SAME(job->result.status, right[way].status);
                SAME(job->result.error, right[way].error);
            }
            int parts = way == NOTHING ? 3 : way == STOPPED || way == OPEN ? 0 : at_part;
            SAME(reads, parts + (way == READ || way == SHORT || way >= WRITE));
            SAME(writes, parts + (way >= WRITE));
            SAME(opens, way != STOPPED && !(way == STOPS && at_part == 0));
            done();
        }
}

/* If a file is in a pack, its bytes come from the pack, and the file itself is not opened. This
 * also holds while the engine is stopping. If the pack cannot be read, the engine reads the file
 * itself. If the copy cannot be written, no unit is published. */
TEST(a_file_of_a_pack_is_shown_with_its_bytes) {
    for (int way = 0; way < 4; way++) {
        make(100);
        job->pack = (struct pack *)job;
        in_pack = way != 1;
        fails = way == 2 ? FULL : NOTHING;
        e->stopping = way == 3;
        at_part = 0;
        monarch_fill_move(e, f, 0, 1, buffer, NULL);
        check_shown(1, way != 2);
        SAME(opens, way == 1);
        SAME(writes, 1);
        SAME(job->result.status == MONARCH_TIER_FULL, way == 2);
        done();
    }
}

/* When the last unit of a block has been copied, the thread computes the block's sum. If it has not
 * seen all bytes of the block, it computes the sum from the copy. If the copy cannot be read, the
 * fill fails and the block stays unfinished. */
TEST(a_block_without_a_sum_fails_the_fill) {
    /* the copy is read completely, is a byte too short, cannot be read, or has no bytes */
    const int results[] = {0, 1, -1, MONARCH_CHUNK};
    for (int i = 0; i < 4; i++) {
        make(2 * MONARCH_CHUNK);
        fails = NOTHING;
        copy_read = results[i];
        monarch_fill_move(e, f, 0, 1, buffer, NULL);
        CHECK(f->blocks_left == 1 && !f->failed);
        monarch_fill_move(e, f, 1, f->units - 1, buffer, NULL);
        SAME(f->blocks_left, i > 0);
        SAME(f->failed, i > 0);
        SAME(job->result.error, i ? EIO : 0);
        if (i)
            SAME(job->result.status, MONARCH_TIER_ERROR);
        done();
    }
}

/* The descriptor of the copy may be 0, and so may the descriptor that a program hands over. */
TEST(a_fill_may_have_descriptor_zero) {
    for (int is_handed = 0; is_handed < 2; is_handed++) {
        make(1);
        struct stat st;
        int high = fcntl(root, F_DUPFD_CLOEXEC, 10);
        CHECK(root == 0 && high >= 10 && fstat(root, &st) == 0);
        e->control->source[0].dev = st.st_dev;
        job->copies = job->source_root = high;
        unlink("0000000000077");
        free(f->sums);
        free(f);
        close(root);
        if (is_handed) {
            job->handed = open("file", O_RDONLY | O_CLOEXEC);
            SAME(job->handed, 0);
        }
        f = monarch_fill_begin(e, job);
        CHECK(f && (is_handed ? f->from : f->to) == 0);
        monarch_fill_move(e, f, 0, 1, buffer, NULL);
        if (is_handed)
            unlink("file"); /* monarch_fill_end looks for the file at the source */
        monarch_fill_end(e, f);
        SAME(job->result.status, is_handed ? MONARCH_SOURCE_CHANGED : MONARCH_DONE);
        SAME(fcntl(0, F_GETFD), -1);
        SAME(e->counts[MONARCH_FILES], !is_handed);
        if (!is_handed)
            free(job->result.block_sums);
        close(high);
        free(job);
        free_engine(e);
    }
}

/* If a fill cannot begin, its copy is removed, and a descriptor that was handed over is closed,
 * even if it is descriptor 0. */
TEST(a_fill_that_cannot_begin_leaves_nothing) {
    for (int way = 0; way < 3; way++) {
        make(1);
        struct stat st;
        int high = fcntl(root, F_DUPFD_CLOEXEC, 10);
        CHECK(fstat(root, &st) == 0);
        e->control->source[0].dev = st.st_dev;
        job->copies = job->source_root = high;
        unlink("0000000000077");
        free(f->sums);
        free(f);
        close(root);
        if (way == 0) { /* the copy's name is taken */
            close(make_file("0000000000077", 1, 1));
            job->handed = open("file", O_RDONLY | O_CLOEXEC);
            SAME(job->handed, 0);
        } else if (way == 1) { /* the source's file is gone */
            unlink("file");
        } else { /* the program has opened another file */
            job->handed = open("/dev/null", O_RDONLY | O_CLOEXEC);
            unlink("file");
        }
        int before = open_descriptors() - (job->handed >= 0);
        CHECK(!monarch_fill_begin(e, job));
        SAME(open_descriptors(), before);
        SAME(job->handed, -1);
        SAME(access("0000000000077", F_OK), way == 0 ? 0 : -1);
        CHECK(job->result.status != MONARCH_DONE && job->result.status != 0);
        unlink("0000000000077");
        close(high);
        free(job);
        free_engine(e);
    }
}
