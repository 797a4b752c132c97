/* Trials of promotion: once a file has a copy, the library moves its open descriptors to the copy.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "acts.h"
#include "site.h"
#include "trials.h"

static unsigned first_copy;
static int held_fd, other_fd, has_lock;
static int is_anothers; /* 1: held_fd was closed, and its number may belong to OTHER */

/* SMALL is being filled, and held_fd is a descriptor of SMALL. OTHER has a complete copy. */
static void reset_open(void) {
    note_descriptors();
    has_lock = is_anothers = 0;
    make_present(OTHER);
    held_fd = open(path_of("source", names[SMALL]), O_RDONLY);
    EXPECT(held_fd >= 0);
    first_copy = make_copy(SMALL, 1, SMALL_BYTES);
    set_word(SMALL, MONARCH_FILLING, first_copy);
}

/* The copy of SMALL was published after the open, and no read has noticed that yet. */
static void reset_published(void) {
    reset_open();
    EXPECT(publish_copy(SMALL, first_copy));
}

static void publish_first(void) {
    step();
    EXPECT(publish_copy(SMALL, first_copy));
}

/* Reads from a descriptor number that another thread closes and reuses. The bytes must belong to
 * SMALL or OTHER. If the number was closed before the read began, they must not belong to SMALL. */
static void read_whole(int fd) {
    uint64_t got[SMALL_BYTES / 8];
    int must_be_anothers = is_anothers;
    ssize_t n = pread(fd, got, sizeof got, 0);
    if (n < 0) {
        EXPECT(errno == EBADF);
        return;
    }
    EXPECT(n == sizeof got);
    unsigned file = (unsigned)(got[0] >> 56);
    EXPECT(file == OTHER || (file == SMALL && !must_be_anothers));
    version_of(file, got, 0, sizeof got);
}

static void read_twice(void) {
    read_whole(held_fd);
    read_whole(held_fd);
}

static void expect_other(int fd) {
    uint64_t got[SMALL_BYTES / 8];
    EXPECT(pread(fd, got, sizeof got, 0) == sizeof got);
    version_of(OTHER, got, 0, sizeof got);
}

static void close_and_open_another(void) {
    EXPECT(close(held_fd) == 0);
    is_anothers = 1;
    int fd = open(path_of("source", names[OTHER]), O_RDONLY);
    expect_other(fd);
    expect_other(fd);
    EXPECT(close(fd) == 0);
}

static void reset_two_open(void) {
    reset_published();
    other_fd = open(path_of("source", names[OTHER]), O_RDONLY);
}

static void put_another_on(void) {
    EXPECT(dup2(other_fd, held_fd) == held_fd);
    is_anothers = 1;
    expect_other(held_fd);
    EXPECT(close(other_fd) == 0);
    expect_other(held_fd);
    EXPECT(close(held_fd) == 0);
}

/* A bit for each half of the file: whether the half was read. The two threads share a file offset,
 * so one of them must read the first half, and the other one the second half. */
static unsigned ranges;

static void reset_offset(void) {
    reset_open();
    ranges = 0;
}

static void read_half(void) {
    uint64_t got[SMALL_BYTES / 16];
    EXPECT(read(held_fd, got, sizeof got) == sizeof got);
    uint64_t from = (got[0] & 0xFFFF) * 8;
    EXPECT(from == 0 || from == sizeof got);
    version_of(SMALL, got, from, sizeof got);
    ranges |= from ? 2 : 1;
}

static void check_offset(void) {
    EXPECT(ranges == 3);
    EXPECT(lseek(held_fd, 0, SEEK_CUR) == SMALL_BYTES);
    EXPECT(close(held_fd) == 0);
    check_descriptors();
}

/* Takes a record lock, which the program must keep even if the library promotes the descriptor. */
static void take_lock(void) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    EXPECT(fcntl(held_fd, F_SETLK, &lock) == 0);
    has_lock = 1;
}

static void check_lock(void) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = raw_open(path_of("kept", names[SMALL]), O_RDWR);
    EXPECT(has_lock && syscall(SYS_fcntl, fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_RDLCK);
    EXPECT(close(held_fd) == 0);
    syscall(SYS_close, fd);
    check_descriptors();
}

const struct trial descriptor_trials[] = {
    {"coming", reset_open, {read_twice, close_and_open_another, publish_first}, check_descriptors},
    {"closing", reset_published, {read_twice, close_and_open_another}, check_descriptors},
    {"replacing", reset_two_open, {read_twice, put_another_on}, check_descriptors},
    {"offset", reset_offset, {read_half, read_half, publish_first}, check_offset},
    {"lock", reset_published, {read_twice, take_lock}, check_lock},
    {0},
};
