/* The preload library and the catalog's writer, in every order of their steps (scheduler.h).
 *
 *   trials NAME BOUND MOST ROOT     prints how many orders it has tried, and what was met in them
 *
 * The program is a client and the daemon at once: the library inside it is attached to the session
 * of MONARCH_CONFIG, whose daemon does nothing, and the daemon's acts are done here, with the
 * functions that it has for them. ROOT has the directories `source`, which is the session's,
 * `tier`, where its copies lie, and `kept`. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "engine/pool.h"
#include "preload/process/calls.h"
#include "preload/session/segments.h"
#include "preload/session/session.h"
#include "publish/writer.h"
#include "scheduler.h"

enum { SMALL, OTHER, LARGE, FILES };
static const char *const names[FILES] = {"small", "other", "large"};
#define SMALL_BYTES 8192
#define LARGE_BYTES (3 * MONARCH_UNIT)
#define MOST_BYTES LARGE_BYTES
#define TIER 0
#define MOST_COPIES 8 /* of a run */

static const char *root;
static struct monarch_control *control;
static struct monarch_clients *clients;
static struct monarch_fills *fills;
static struct monarch_catalog *catalog, *snapshot;
static struct monarch_writer *writer;
static uint64_t ids[FILES];
static unsigned last_copy;
static int open_before; /* descriptors, before a run */

/* --- files: without the library ------------------------------------------------------------------
 */

static uint64_t size_of(unsigned file) { return file == LARGE ? LARGE_BYTES : SMALL_BYTES; }

static uint64_t word_at(unsigned file, unsigned version, uint64_t i) {
    return (uint64_t)file << 56 | (uint64_t)version << 48 | i;
}

static void make_bytes(unsigned file, unsigned version, uint64_t *to, uint64_t from, uint64_t n) {
    for (uint64_t i = 0; i < n / 8; i++)
        to[i] = word_at(file, version, from / 8 + i);
}

/* The version that these bytes are of; what is not of the file, or of two versions, is wrong. */
static unsigned version_of(unsigned file, const uint64_t *got, uint64_t from, uint64_t n) {
    unsigned version = got[0] >> 48 & 255;
    for (uint64_t i = 0; i < n / 8; i++)
        if (got[i] != word_at(file, version, from / 8 + i))
            wrong("%s: word %llu is %llx", names[file], (unsigned long long)i,
                  (unsigned long long)got[i]);
    return version;
}

static const char *path_of(const char *directory, const char *name) {
    static __thread char paths[4][512];
    static __thread unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s/%s", root, directory, name);
    return path;
}

static const char *name_of_copy(unsigned number) {
    static __thread char name[32];
    snprintf(name, sizeof name, "%0*x", MONARCH_COPY_NAME, number);
    return name;
}

static int raw_open(const char *path, int flags) {
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0400);
}

/* [from, from + n) of a file; the file is made when it is not there. */
static void put_bytes(const char *path, unsigned file, unsigned version, uint64_t from,
                      uint64_t n) {
    static uint64_t bytes[MOST_BYTES / 8];
    make_bytes(file, version, bytes, from, n);
    int fd = raw_open(path, O_WRONLY | O_CREAT);
    EXPECT(fd >= 0 && syscall(SYS_pwrite64, fd, bytes, n, from) == (long)n);
    syscall(SYS_close, fd);
}

static unsigned make_copy(unsigned file, unsigned version, uint64_t n) {
    put_bytes(path_of("tier", name_of_copy(++last_copy)), file, version, 0, n);
    return last_copy;
}

/* Copies have the same inodes in every run: where an index has them decides how it is searched. */
static const char *kept_copy(unsigned number) {
    char name[32];
    snprintf(name, sizeof name, "copy.%u", number);
    return path_of("kept", name);
}

static void drop_copy(unsigned number) {
    syscall(SYS_unlinkat, AT_FDCWD, path_of("tier", name_of_copy(number)), 0);
}

static uint64_t inode_of(const char *path) {
    struct stat st;
    EXPECT(syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0) == 0);
    return st.st_ino;
}

/* The source has the first version under its name, and the same inode in every run. */
static void restore_source(void) {
    for (unsigned k = 0; k < FILES; k++) {
        const char *kept = path_of("kept", names[k]), *path = path_of("source", names[k]);
        const char *young = path_of("kept", "young");
        if (inode_of(path) == inode_of(kept))
            continue;
        EXPECT(syscall(SYS_linkat, AT_FDCWD, kept, AT_FDCWD, young, 0) == 0);
        EXPECT(syscall(SYS_renameat, AT_FDCWD, young, AT_FDCWD, path) == 0);
    }
}

static int open_descriptors(void) {
    int n = 0;
    for (int fd = 0; fd < 64; fd++)
        n += syscall(SYS_fcntl, fd, F_GETFD) >= 0;
    return n;
}

/* --- the daemon's acts ---------------------------------------------------------------------------
 */

static const struct monarch_entry *entry_of(unsigned file) {
    return &monarch_entries(catalog)[ids[file]];
}

static void set_word(unsigned file, unsigned state, unsigned copy) {
    uint64_t word = monarch_word(state, 0, TIER, copy);
    monarch_set_words(writer, 1, &ids[file], &word);
}

static int publish_copy(unsigned file, unsigned copy) {
    struct monarch_result r = {.id = ids[file], .copy = copy, .tier = TIER, .kind = MONARCH_FILL};
    r.copy_ino = inode_of(path_of("tier", name_of_copy(copy)));
    pthread_mutex_lock(&writer->lock);
    int is_done = monarch_publish_result(writer, control, clients, &r);
    pthread_mutex_unlock(&writer->lock);
    return is_done;
}

static unsigned make_present(unsigned file) {
    unsigned copy = make_copy(file, 1, size_of(file));
    set_word(file, MONARCH_FILLING, copy);
    EXPECT(publish_copy(file, copy));
    return copy;
}

static void begin_fill(unsigned file, unsigned slot, unsigned copy) {
    struct monarch_fill *f = &fills->fill[slot];
    memset(f->done, 0, 64);
    f->failed = f->whole = 0;
    f->unit_bytes = MONARCH_UNIT;
    __atomic_store_n(&fills->word[slot], monarch_word(MONARCH_FILLING, 0, TIER, copy),
                     __ATOMIC_SEQ_CST);
    step();
    set_word(file, MONARCH_FILLING, copy);
}

/* And answers everybody who waits. */
static void answer(void) {
    for (unsigned i = 0; i < MONARCH_DEMANDS; i++)
        __atomic_store_n(&clients->demand[i], 0, __ATOMIC_SEQ_CST);
    step();
}

static void fill_unit(unsigned file, unsigned slot, unsigned copy, unsigned unit) {
    put_bytes(path_of("tier", name_of_copy(copy)), file, 1, (uint64_t)unit * MONARCH_UNIT,
              MONARCH_UNIT);
    step();
    __atomic_fetch_or(&fills->fill[slot].done[0], 1ULL << unit, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&fills->units, 1, __ATOMIC_SEQ_CST);
    answer();
}

static void end_fill(unsigned slot) {
    __atomic_store_n(&fills->word[slot], 0, __ATOMIC_SEQ_CST);
    step();
}

/* --- before and after each run -------------------------------------------------------------------
 */

static void forget_change(uint64_t ino) {
    uint64_t dev = control->source[0].dev;
    uint64_t bits[2] = {monarch_filter_bit(dev, ino), monarch_filter_second(dev, ino)};
    for (int i = 0; i < 2; i++) {
        clients->changed[bits[i] / 64] = 0;
        clients->changed_coarse[bits[i] / MONARCH_FILTER_COARSE / 64] = 0;
    }
}

static void reset(void) {
    restore_source();
    for (unsigned number = 1; number <= MOST_COPIES; number++) {
        const char *path = path_of("tier", name_of_copy(number));
        drop_copy(number);
        EXPECT(syscall(SYS_linkat, AT_FDCWD, kept_copy(number), AT_FDCWD, path, 0) == 0);
        EXPECT(syscall(SYS_truncate, path, 0) == 0);
    }
    memcpy(catalog, snapshot, snapshot->bytes);
    memset(clients->demand, 0, sizeof clients->demand);
    clients->silent_at = 0;
    for (unsigned k = 0; k < FILES; k++) {
        forget_change(entry_of(k)->ino);
        *monarch_claim_at(clients, ids[k]) = 0;
    }
    memset(clients->wanted.word, 0, 64);
    memset(clients->wanted.summary, 0, 64);
    memset(fills->word, 0, sizeof fills->word);
    open_before = open_descriptors();
}

static void check_descriptors(void) { EXPECT(open_descriptors() == open_before); }

/* --- an entry: its copy is dropped and made anew, and its file is replaced
 * ------------------------
 */

static unsigned first_copy;
static int is_replaced; /* the program knows that it is */

static void reset_entry(void) {
    reset();
    is_replaced = 0;
    first_copy = make_present(SMALL);
    put_bytes(path_of("kept", "new"), SMALL, 2, 0, SMALL_BYTES);
}

/* An open gives the old file or the new one; only the new one if the rename had returned before the
 * open began. */
static void open_and_read(void) {
    uint64_t got[SMALL_BYTES / 8];
    int must_be_new = is_replaced, fd = open(path_of("source", names[SMALL]), O_RDONLY);
    EXPECT(fd >= 0 && read(fd, got, sizeof got) == sizeof got);
    unsigned version = version_of(SMALL, got, 0, sizeof got);
    EXPECT(version == 2 || (version == 1 && !must_be_new));
    EXPECT(close(fd) == 0);
}

static void replace_file(void) {
    EXPECT(rename(path_of("kept", "new"), path_of("source", names[SMALL])) == 0);
    is_replaced = 1;
    open_and_read();
}

/* As the engine does: what the source is before and after is the same, or nothing is published. */
static void make_anew(void) {
    uint64_t bytes[SMALL_BYTES / 8];
    set_word(SMALL, MONARCH_ABSENT, 0);
    drop_copy(first_copy);
    step();
    int fd = raw_open(path_of("source", names[SMALL]), O_RDONLY);
    step();
    EXPECT(fd >= 0 && syscall(SYS_pread64, fd, bytes, sizeof bytes, 0) == sizeof bytes);
    step();
    struct stat st;
    EXPECT(syscall(SYS_fstat, fd, &st) == 0);
    syscall(SYS_close, fd);
    if (st.st_ino != entry_of(SMALL)->ino)
        return;
    unsigned copy = make_copy(SMALL, version_of(SMALL, bytes, 0, sizeof bytes), SMALL_BYTES);
    set_word(SMALL, MONARCH_FILLING, copy);
    publish_copy(SMALL, copy);
}

/* --- a descriptor whose copy comes: promotion
 * -----------------------------------------------------
 */

static int held_fd, other_fd, has_lock;
static int is_anothers; /* the number held_fd is the other file's, or nobody's, by now */

/* The file is being filled, and a descriptor of it is open; the other one has its copy. */
static void reset_open(void) {
    reset();
    has_lock = is_anothers = 0;
    make_present(OTHER);
    held_fd = open(path_of("source", names[SMALL]), O_RDONLY);
    EXPECT(held_fd >= 0);
    first_copy = make_copy(SMALL, 1, SMALL_BYTES);
    set_word(SMALL, MONARCH_FILLING, first_copy);
}

/* Its copy is there by now, and no read has seen that. */
static void reset_published(void) {
    reset_open();
    EXPECT(publish_copy(SMALL, first_copy));
}

static void publish_first(void) {
    step();
    EXPECT(publish_copy(SMALL, first_copy));
}

/* Of a number that another thread closes and uses again: the one file's or the other's, and not the
 * one's any more once it is the other's. */
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

/* Two readers of one offset: each has a range of its own. */
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

/* A lock stays, whatever becomes of the descriptor that it was taken through. */
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

/* --- a copy that is being filled: its units, and its slot that another copy gets
 * -------------------
 */

static unsigned next_copy;

static void reset_filling(void) {
    reset();
    first_copy = make_copy(LARGE, 1, 0);
    EXPECT(syscall(SYS_truncate, path_of("tier", name_of_copy(first_copy)), LARGE_BYTES) == 0);
    next_copy = make_copy(OTHER, 1, SMALL_BYTES);
    held_fd = open(path_of("source", names[LARGE]), O_RDONLY);
    EXPECT(held_fd >= 0);
    begin_fill(LARGE, 0, first_copy);
}

static void read_large(void) {
    static uint64_t got[LARGE_BYTES / 8];
    EXPECT(pread(held_fd, got, LARGE_BYTES, 0) == LARGE_BYTES);
    version_of(LARGE, got, 0, LARGE_BYTES);
    EXPECT(close(held_fd) == 0);
}

static void fill_all(void) {
    for (unsigned unit = 0; unit < LARGE_BYTES / MONARCH_UNIT; unit++)
        fill_unit(LARGE, 0, first_copy, unit);
    publish_copy(LARGE, first_copy);
    end_fill(0);
}

/* The fill fails after its first unit; its slot is another's at once, all of which is there. */
static void fail_and_fill_another(void) {
    fill_unit(LARGE, 0, first_copy, 0);
    __atomic_store_n(&fills->fill[0].failed, 1, __ATOMIC_SEQ_CST);
    answer();
    set_word(LARGE, MONARCH_ABSENT, 0);
    end_fill(0);
    begin_fill(OTHER, 0, next_copy);
    __atomic_store_n(&fills->fill[0].done[0], 7, __ATOMIC_SEQ_CST);
    step();
    answer();
    publish_copy(OTHER, next_copy);
    end_fill(0);
    drop_copy(first_copy);
}

/* --- a descriptor that is handed over, and locked
 * -------------------------------------------------
 */

#define RECALL_NS 50000000ULL /* a lock waits no longer */

static int again_fd, socket_fd;
static unsigned programs_done;

/* The program's reads of it are the source's, and the daemon listens. */
static void reset_direct(void) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    reset();
    programs_done = 0;
    control->handed_bytes = MOST_BYTES;
    snprintf(at.sun_path, sizeof at.sun_path, "%s/handovers.%u", monarch_session_dir(),
             (unsigned)(ids[SMALL] % MONARCH_HANDOVER_SOCKETS));
    syscall(SYS_unlinkat, AT_FDCWD, at.sun_path, 0);
    socket_fd = (int)syscall(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    EXPECT(syscall(SYS_bind, socket_fd, &at, sizeof at) == 0);
    held_fd = again_fd = open(path_of("source", names[SMALL]), O_RDONLY);
    EXPECT(held_fd >= 0);
}

/* It is locked through a duplicate. */
static void reset_duplicate(void) {
    reset_direct();
    again_fd = dup(held_fd);
    EXPECT(again_fd >= 0);
}

static void read_and_hand_over(void) {
    uint64_t got[SMALL_BYTES / 8];
    ssize_t n = read(held_fd, got, sizeof got);
    if (n >= 0)
        version_of(SMALL, got, 0, (uint64_t)n);
    EXPECT(n == sizeof got || (n < 0 && errno == EBADF));
    programs_done++;
    step();
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* A lock ends with the program's last descriptor of the open file, unless the daemon was too slow
 * to close its own. */
static void lock_and_close(void) {
    uint64_t began_ns = now_ns();
    EXPECT(flock(again_fd, LOCK_EX) == 0);
    int was_slow = now_ns() - began_ns >= RECALL_NS;
    EXPECT(close(held_fd) == 0);
    EXPECT(again_fd == held_fd || close(again_fd) == 0);
    int fd = raw_open(path_of("source", names[SMALL]), O_RDONLY);
    EXPECT(syscall(SYS_flock, fd, LOCK_EX | LOCK_NB) == 0 || was_slow);
    syscall(SYS_close, fd);
    programs_done++;
    step();
}

/* The next descriptor that has come, -1 for none. */
static int receive(void) {
    char what[sizeof(struct monarch_handover)];
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } room;
    struct iovec part = {what, sizeof what};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &room, .msg_controllen = sizeof room};
    int fd = -1;
    if (syscall(SYS_recvmsg, socket_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) > 0)
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    clients->stats[0].unused[0] += fd >= 0;
    return fd;
}

/* As the daemon: it has the descriptor for some time, but not once that is recalled. */
static void take_descriptors(void) {
    for (int fd; (fd = receive()) >= 0 || programs_done < 2;) {
        for (int n = 0; fd >= 0 && n < 3; n++)
            if (!monarch_is_recalled(clients, ids[SMALL], now_ns()))
                step_waiting();
        if (fd >= 0) {
            syscall(SYS_close, fd);
            step();
            monarch_end_claim(clients, ids[SMALL]);
        }
        step_waiting();
    }
    syscall(SYS_close, socket_fd);
}

static void set_flag(void) {
    EXPECT(fcntl(held_fd, F_SETFD, FD_CLOEXEC) == 0 || errno == EBADF);
    read_and_hand_over();
}

/* --- calls behind the library: each is a step
 * -----------------------------------------------------
 */

static int real_open(const char *path, int flags, ...) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0);
    step();
    return fd;
}
static int real_close(int fd) {
    int r = (int)syscall(SYS_close, fd);
    step();
    return r;
}
static ssize_t real_read(int fd, void *to, size_t n) {
    ssize_t r = syscall(SYS_read, fd, to, n);
    step();
    return r;
}
static ssize_t real_pread(int fd, void *to, size_t n, off_t at) {
    ssize_t r = syscall(SYS_pread64, fd, to, n, at);
    step();
    return r;
}
static int real_dup2(int fd, int fresh) {
    int r = (int)syscall(SYS_dup2, fd, fresh);
    step();
    return r;
}
static int real_fcntl(int fd, int command, ...) {
    va_list args;
    va_start(args, command);
    int r = (int)syscall(SYS_fcntl, fd, command, va_arg(args, long));
    va_end(args);
    step();
    return r;
}
static int real_flock(int fd, int operation) {
    int r = (int)syscall(SYS_flock, fd, operation);
    step();
    return r;
}
static int real_rename(const char *from, const char *to) {
    int r = (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
    step();
    return r;
}

static void stand_behind_the_library(void) {
    monarch_real.open = (void *)real_open;
    monarch_real.close = (void *)real_close;
    monarch_real.read = (void *)real_read;
    monarch_real.pread = (void *)real_pread;
    monarch_real.dup2 = (void *)real_dup2;
    monarch_real.fcntl = (void *)real_fcntl;
    monarch_real.flock = (void *)real_flock;
    monarch_real.rename = (void *)real_rename;
}

/* --- all of them
 * ----------------------------------------------------------------------------------
 */

static const struct trial trials[] = {
    {"entry", reset_entry, {open_and_read, replace_file, make_anew}, check_descriptors},
    {"coming", reset_open, {read_twice, close_and_open_another, publish_first}, check_descriptors},
    {"closing", reset_published, {read_twice, close_and_open_another}, check_descriptors},
    {"replacing", reset_two_open, {read_twice, put_another_on}, check_descriptors},
    {"offset", reset_offset, {read_half, read_half, publish_first}, check_offset},
    {"lock", reset_published, {read_twice, take_lock}, check_lock},
    {"handover",
     reset_duplicate,
     {read_and_hand_over, lock_and_close, take_descriptors},
     check_descriptors},
    {"flags", reset_direct, {set_flag, lock_and_close, take_descriptors}, check_descriptors},
    {"filling", reset_filling, {read_large, fill_all}, check_descriptors},
    {"failing", reset_filling, {read_large, fail_and_fill_another}, check_descriptors},
};

static void *map_file(const char *name) {
    char path[512];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", monarch_session_dir(), name);
    int fd = raw_open(path, O_RDWR);
    if (fd < 0 || syscall(SYS_fstat, fd, &st) != 0) {
        perror(path);
        exit(2);
    }
    void *at =
        (void *)syscall(SYS_mmap, NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    return at;
}

static void add_file(unsigned file) {
    char target[16];
    struct monarch_entry e;
    uint64_t added = 0;
    put_bytes(path_of("kept", names[file]), file, 1, 0, size_of(file));
    if (syscall(SYS_linkat, AT_FDCWD, path_of("kept", names[file]), AT_FDCWD,
                path_of("source", names[file]), 0) != 0)
        exit(2);
    int directory = raw_open(control->source[0].path, O_RDONLY | O_DIRECTORY);
    if (monarch_statx_entry(directory, 0, names[file], 0, &e, target, sizeof target) != 0)
        exit(2);
    e.path = 0;
    e.path_len = (uint16_t)strlen(names[file]);
    if (monarch_catalog_add(writer, &e, 1, names[file], &ids[file], &added) != 1)
        exit(2);
    syscall(SYS_close, directory);
}

static void set_up(void) {
    char name[64];
    control = map_file("control");
    clients = map_file("clients");
    fills = map_file("fills");
    snprintf(name, sizeof name, "catalog.%llu", (unsigned long long)control->generation);
    catalog = map_file(name);
    writer = monarch_writer_new();
    writer->catalog = catalog;
    for (unsigned k = 0; k < FILES; k++)
        add_file(k);
    for (unsigned number = 1; number <= MOST_COPIES; number++)
        put_bytes(kept_copy(number), OTHER, 0, 0, 0);
    snapshot = malloc(catalog->bytes);
    memcpy(snapshot, catalog, catalog->bytes);
    /* Counters, and pointers that never change, are no reason to switch threads. */
    struct session *s = monarch_current;
    stand_behind_the_library();
    ignore_memory(s->clients->stats, sizeof s->clients->stats + sizeof s->clients->rank);
    ignore_memory(&monarch_real, sizeof monarch_real);
}

/* Counts of what the library has done in all runs, which show that the trial has tried something.
 */
static void print_counts(uint64_t runs) {
    struct monarch_stats sum = {0};
    for (unsigned i = 0; i < MONARCH_STAT_SLOTS; i++) {
        sum.hits += clients->stats[i].hits;
        sum.misses += clients->stats[i].misses;
        sum.promotions += clients->stats[i].promotions;
        sum.waits += clients->stats[i].waits;
        sum.bytes_while_filling += clients->stats[i].bytes_while_filling;
    }
    printf("{\"runs\": %lu, \"hits\": %lu, \"misses\": %lu, \"promotions\": %lu, "
           "\"waits\": %lu, \"bytes_while_filling\": %lu, \"handed\": %lu}\n",
           runs, sum.hits, sum.misses, sum.promotions, sum.waits, sum.bytes_while_filling,
           clients->stats[0].unused[0]);
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    root = argv[4];
    set_up();
    for (unsigned i = 0; i < sizeof trials / sizeof *trials; i++)
        if (strcmp(trials[i].name, argv[1]) == 0) {
            uint64_t most = strtoull(argv[3], NULL, 10);
            print_counts(explore(&trials[i], (unsigned)atoi(argv[2]), most));
            return 0;
        }
    return 2;
}
