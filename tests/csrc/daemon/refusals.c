/* Tests copy/source_file.c: what it does if the kernel refuses something, or returns 0 as the
 * number of a descriptor. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* The errors that the next calls of dup3 return. The list ends with 0. */
static const int *dup_errors;
static int dups;
static int dup_to(int from, int to, int flags) {
    dups++;
    if (dup_errors && *dup_errors) {
        errno = *dup_errors++;
        return -1;
    }
    return dup3(from, to, flags);
}
/* refuses_direct: whether calls that set O_DIRECT fail, as on tmpfs before Linux 6.6. direct_tries:
 * the number of these calls. */
static int refuses_direct, direct_tries;
static int control(int fd, int what, int flags) {
    direct_tries += what == F_SETFL && flags & O_DIRECT;
    if (refuses_direct && what == F_SETFL && flags & O_DIRECT) {
        errno = EINVAL;
        return -1;
    }
    return fcntl(fd, what, flags);
}
/* The results of the next reads with RWF_DONTCACHE: for each read, its error, or the largest number
 * of bytes that it may read. The list ends with 99. Reads fail with EOPNOTSUPP if there is no list,
 * or if its end is reached. */
static const long *drop_results;
static int drop_reads;
#include "shared/sys.h"
static long read_and_drop(long number, long fd, long parts, long n, long at, long high, long how) {
    struct iovec *part = (struct iovec *)parts;
    if (number != SYS_preadv2 || n != 1 || high || how != 0x80)
        abort();
    drop_reads++;
    long r = drop_results && *drop_results != 99 ? *drop_results++ : -EOPNOTSUPP;
    if (r <= 0)
        return r;
    return pread((int)fd, part->iov_base, (size_t)r < part->iov_len ? (size_t)r : part->iov_len,
                 at);
}
#define sys6 read_and_drop
#define CONTROL(fd, what, flags, ...) control(fd, what, flags)
#define fcntl(fd, ...) CONTROL(fd, __VA_ARGS__, 0, 0)
#define dup3 dup_to
#include "copy/source_file.c"
#undef dup3
#undef fcntl
#undef sys6

#include "checks.h"

static struct monarch_engine *e;
static struct job *job;
static int root, handed, before;
static struct fill f;

/* Makes an order for a file of 100 bytes, with a descriptor that a program has handed over and now
 * wants back. zero: 0 if descriptor 0 is free, 1 if it is in use. */
static void make(int zero) {
    before = open_descriptors();
    e = make_engine(4096);
    int first = open("/dev/null", O_RDONLY | O_CLOEXEC);
    SAME(first, 0);
    root = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    unlink("file");
    close(make_file("file", 100, 7));
    job = make_job(root, root, "file", 1);
    handed = open("file", O_RDONLY | O_CLOEXEC);
    job->handed = handed;
    job->claim = 11;
    e->clients->claim[11] =
        monarch_claim_of(11, MONARCH_CLAIM_HANDED, monarch_now_ns()) | MONARCH_CLAIM_RECALLED;
    CHECK(lseek(handed, 50, SEEK_SET) == 50); /* distinguishes this file from its replacement */
    f = (struct fill){.job = job, .units = 1, .from = handed};
    dups = 0;
    dup_errors = NULL;
    if (!zero)
        close(first);
}

static void done(int zero) {
    close(handed);
    if (zero)
        close(0);
    close(root);
    free(job);
    free_engine(e);
    SAME(open_descriptors(), before);
}

/* The daemon replaces the program's open file with its own, and thereby closes the program's file.
 * This also works if the daemon's descriptor is 0, and if dup3 at first fails with EINTR or
 * EBUSY. */
TEST(a_descriptor_is_replaced_at_last) {
    static const int again[] = {EINTR, EBUSY, EINTR, 0};
    for (int zero = 0; zero < 2; zero++)
        for (int is_busy = 0; is_busy < 2; is_busy++) {
            int status = 0;
            make(zero);
            dup_errors = is_busy ? again : NULL;
            errno = EPERM; /* an old error, which must not matter */
            SAME(monarch_give_back_recalled(e, &f, handed, &status), 0);
            SAME(dups, is_busy ? 4 : 1);
            SAME(lseek(handed, 0, SEEK_CUR), 0);
            CHECK(job->handed == -1 && e->clients->claim[11] == 0);
            done(zero);
        }
}

/* Of two threads that want to replace a descriptor, only the first one does. The second one must
 * not replace it again, because a fill may already be reading from the new descriptor, which has
 * the same number. */
TEST(a_descriptor_is_replaced_once) {
    int status = 0;
    make(1);
    SAME(give_back(e, &f, handed, &status), 0);
    CHECK(lseek(handed, 7, SEEK_SET) == 7);
    SAME(give_back(e, &f, handed, &status), 0);
    SAME(lseek(handed, 0, SEEK_CUR), 7);
    SAME(dups, 1);
    SAME(monarch_give_back_recalled(e, &f, handed, &status), 0);
    SAME(dups, 1);
    done(1);
}

/* Descriptor 0 is valid like any other: the descriptor that a program hands over for an order may
 * be 0. */
TEST(an_order_may_have_descriptor_zero) {
    make(1);
    const int numbers[] = {0, 1, -1};
    for (int i = 0; i < 3; i++) {
        job->handed = numbers[i];
        SAME(monarch_is_handed(job), i < 2);
    }
    job->handed = 0;
    e->clients->claim[11] &= ~(uint64_t)MONARCH_CLAIM_RECALLED;
    monarch_close_handed(e, job);
    CHECK(job->handed == -1 && fcntl(0, F_GETFD) < 0 && e->clients->claim[11] == 0);
    done(0);
}

/* A source that refuses O_DIRECT once is read through the page cache from then on. For other
 * sources, O_DIRECT is still tried. */
TEST(a_source_that_refuses_is_not_asked_again) {
    static char buffer[MONARCH_CHUNK] __attribute__((aligned(4096)));
    make(1);
    unlink("large");
    close(make_file("large", DIRECT_BYTES, 7));
    int fd = open("large", O_RDONLY | O_CLOEXEC);
    job->entry.size = DIRECT_BYTES;
    job->handed = -1;
    job->entry.source = 3;
    e->awaited_sources = 12; /* sources 2 and 3 */
    refuses_direct = 1;
    for (int turn = 0; turn < 3; turn++) {
        memset(buffer, 0, DIRECT_BYTES);
        SAME(monarch_read_part(e, &f, fd, buffer, DIRECT_BYTES, 0), DIRECT_BYTES);
        check_bytes(7, 0, 0, buffer, DIRECT_BYTES);
        SAME(direct_tries, 1);
        SAME(e->buffered_sources, 8);
    }
    job->entry.source = 2;
    SAME(monarch_read_part(e, &f, fd, buffer, DIRECT_BYTES, 0), DIRECT_BYTES);
    SAME(direct_tries, 2);
    SAME(e->buffered_sources, 12);
    monarch_engine_direct_io(e, 1); /* forgets what was refused */
    SAME(e->buffered_sources, 0);
    monarch_engine_direct_io(e, 0);
    SAME(e->buffered_sources, UINT32_MAX);
    close(fd);
    done(1);
}

/* Reads with RWF_DONTCACHE leave no pages in the page cache. If the file system refuses such a
 * read, the read continues without the flag from where it stopped. Later reads of this source do
 * not use the flag. Interrupted and short reads continue with the flag. If the file cannot be read
 * at all, this says nothing about the file system. */
TEST(a_source_that_keeps_pages_is_noted) {
    static const long results[][5] = {
        {-EOPNOTSUPP, 99}, {-EINTR, 30, -EINTR, -EINVAL, 99}, {-EINTR, 60, 1, 39, 99}, {60, 0, 99}};
    char bytes[100];
    make(1);
    job->entry.source = 3;
    for (int i = 0; i < 4; i++) {
        e->kept_sources = 0;
        drop_results = results[i];
        drop_reads = 0;
        memset(bytes, 0, sizeof bytes);
        SAME(monarch_read_source(e, job, handed, bytes, 100, 0), i == 3 ? 60 : 100);
        check_bytes(7, 0, 0, bytes, i == 3 ? 60 : 100);
        SAME(e->kept_sources, i < 2 ? 8 : 0);
        SAME(drop_reads, i == 0 ? 1 : i == 3 ? 2 : 4);
        if (i < 2) {
            SAME(monarch_read_source(e, job, handed, bytes, 100, 0), 100);
            SAME(drop_reads, i == 0 ? 1 : 4);
        }
    }
    drop_results = results[0];
    SAME(monarch_read_source(e, job, -1, bytes, 100, 0), -EBADF);
    SAME(e->kept_sources, 0);
    done(1);
}
