/* Threads and children read files at offsets, and close, reopen and duplicate descriptors, while
 * the test drops the copies of all files again and again.
 *
 *   make SOURCE                     makes the files
 *   run SOURCE SCRATCH SECONDS      prints as JSON how often each operation was done, and the
 *                                   number of errors; describes errors on standard error
 *
 * A thread that opens a file owns the descriptor's number until it puts the number into a slot. As
 * the owner, it checks that its own file is open on the number. All threads read from the numbers
 * in the slots, and each number is closed in the end by one of the threads. A thread that reads
 * from a slot may be late: then the number is closed, or any other file is open on it. This other
 * file may be an incomplete copy that the library has opened for a read of another thread, or a
 * file that the library has opened for itself. But one read never returns bytes of two files.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FILES 120
#define THREADS 6
#define SLOTS 12
#define SCRATCHES 4 /* files outside the source, numbered after those of the source */
#define LARGEST 700000
#define TOLD 20 /* at most this many errors are described on standard error */

/* The operations that are counted. */
#define DEEDS(X) \
    X(preads)    \
    X(late) X(reads) X(closes) X(dup2s) X(dups) X(close_ranges) X(fcloses) X(forks) X(vforks)

enum deed {
#define X(name) name,
    DEEDS(X)
#undef X
        deeds
};

static const char *source, *scratch;
static ino_t inode[FILES + SCRATCHES];
static uint64_t done[deeds], wrong;
static volatile int over;

/* Each slot holds the number of a descriptor from which all threads read, and the index of the file
 * that was opened on this number. */
static struct slot {
    pthread_mutex_t lock; /* held by a thread that replaces `fd` and `file` */
    int fd, file;
} slots[SLOTS];

static void count(enum deed d) { __atomic_fetch_add(&done[d], 1, __ATOMIC_RELAXED); }

__attribute__((format(printf, 1, 2))) static void is_wrong(const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (__atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED) < TOLD)
        vfprintf(stderr, format, args);
    va_end(args);
}

__attribute__((noreturn)) static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t below(uint64_t *rng, uint64_t n) {
    *rng ^= *rng << 13;
    *rng ^= *rng >> 7;
    *rng ^= *rng << 17;
    return (*rng >> 11) % n;
}

/* --- files: each word contains the number of its file and its own index --------------------------
 */

static size_t size_of(unsigned k) {
    return k >= FILES ? 40000 : (8 + k * 977ULL * 8 % LARGEST) / 8 * 8;
}

static uint64_t word_at(unsigned k, size_t at) { return (uint64_t)(k + 1) << 40 | at / 8; }

static void path_of(unsigned k, char *out, size_t room) {
    snprintf(out, room, "%s/f%03u", k < FILES ? source : scratch, k);
}

static void make_file(unsigned k) {
    static uint64_t words[LARGEST / 8 + 1];
    char path[4096];
    size_t n = size_of(k);
    for (size_t at = 0; at < n; at += 8)
        words[at / 8] = word_at(k, at);
    path_of(k, path, sizeof path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, words, n) != (ssize_t)n || close(fd) != 0)
        fail(path);
}

/* Returns the file to which the word at offset `at` belongs, or -1. */
static int file_of_word(uint64_t word, size_t at) {
    unsigned k = (unsigned)(word >> 40) - 1;
    return k < FILES + SCRATCHES && word == word_at(k, at) ? (int)k : -1;
}

/* Returns the file to which the `n` bytes at offset `at` belong; -1 if they belong to no file or to
 * several files. */
static int file_of(const uint64_t *words, size_t n, size_t at) {
    int k = file_of_word(words[0], at);
    if (n % 8 || k < 0)
        return -1;
    for (size_t i = 0; i < n; i += 8)
        if (words[i / 8] != word_at((unsigned)k, at + i))
            return -1;
    return k;
}

/* Returns the index of the first word that belongs to another file than the words before it, or the
 * number of words if there is no such word. Ignores words that are 0: no file contains such words,
 * but a copy does while it is incomplete. */
static size_t find_mixed(const uint64_t *words, size_t n, size_t at) {
    int known = 0, k = -1;
    for (size_t i = 0; i < n / 8; i++) {
        if (!words[i])
            continue;
        int its = file_of_word(words[i], at + 8 * i);
        if (known && its != k)
            return i;
        known = 1;
        k = its;
    }
    return n / 8;
}

/* --- reading ------------------------------------------------------------------------------------
 */

#define MOST 65536

/* Reads a random range of whole words of file k, by pread or preadv, which do not move the
 * descriptor's offset. */
static ssize_t read_range(int fd, unsigned k, uint64_t *rng, uint64_t *words, size_t *at,
                          size_t *n) {
    *at = below(rng, size_of(k) / 8) * 8;
    *n = 8 + below(rng, MOST / 8 - 1) * 8;
    struct iovec parts[2] = {{words, *n / 16 * 8}, {(char *)words + *n / 16 * 8, 0}};
    parts[1].iov_len = *n - parts[0].iov_len;
    count(preads);
    return below(rng, 4) ? pread(fd, words, *n, (off_t)*at) : preadv(fd, parts, 2, (off_t)*at);
}

/* Checks that a descriptor that only this thread uses is open on file k. Compares the bytes and the
 * inode number. */
static void check(int fd, unsigned k, uint64_t *rng, const char *who) {
    uint64_t words[MOST / 8];
    size_t at, n;
    struct stat st;
    ssize_t r = read_range(fd, k, rng, words, &at, &n);
    size_t expected = size_of(k) - at < n ? size_of(k) - at : n;
    if (r != (ssize_t)expected || file_of(words, expected, at) != (int)k)
        is_wrong("%s: %zd of %zu bytes at %zu of file %u are those of %d (%s)\n", who, r, expected,
                 at, k, r > 0 ? file_of(words, (size_t)r, at) : -1, r < 0 ? strerror(errno) : "-");
    if (fstat(fd, &st) != 0 || st.st_ino != inode[k])
        is_wrong("%s: fstat of file %u, inode %llu, tells of inode %llu with %u links\n", who, k,
                 (unsigned long long)inode[k], (unsigned long long)st.st_ino,
                 (unsigned)st.st_nlink);
}

/* Reads from the descriptor in a slot. Meanwhile, other threads may close this descriptor, or put
 * another file on its number. Checks that all bytes are of one file. */
static void read_slot(struct slot *s, uint64_t *rng) {
    uint64_t words[MOST / 8];
    size_t at, n;
    int fd = __atomic_load_n(&s->fd, __ATOMIC_ACQUIRE);
    int k = __atomic_load_n(&s->file, __ATOMIC_ACQUIRE);
    if (fd < 0)
        return;
    for (uint64_t later = below(rng, 8); later > 4; later--)
        sched_yield();
    ssize_t r = read_range(fd, (unsigned)k, rng, words, &at, &n);
    if (r <= 0 || file_of(words, (size_t)r, at) != k)
        count(late);
    /* If another thread has closed the descriptor, the read fails with EBADF. The library may also
     * have opened something for itself on the descriptor's number. The read fails with ESPIPE if
     * this is a socket, and with EISDIR if it is a directory of /proc. If it is a file of /proc,
     * the read may fail with ENOENT or ESRCH. A file of the library, such as the catalog, contains
     * no bytes of this program's files. If another file is open on the number and ends before `at`,
     * the read returns 0. */
    static const int expected[] = {EBADF, ESPIPE, EISDIR, ENOENT, ESRCH};
    int is_expected = r >= 0;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        is_expected |= errno == expected[i];
    if (!is_expected)
        is_wrong("a slot: %s\n", strerror(errno));
    size_t all = r > 0 ? (size_t)r / 8 : 0, mixed = find_mixed(words, 8 * all, at);
    if (mixed < all)
        is_wrong("a slot: %zd bytes at %zu of %d are not of one file: word %zu is %#llx\n", r, at,
                 k, mixed, (unsigned long long)words[mixed]);
}

/* --- numbers ------------------------------------------------------------------------------------
 */

static int open_file(unsigned k) {
    char path[4096];
    path_of(k, path, sizeof path);
    int fd = open(path, (k < FILES ? O_RDONLY : O_RDWR) | O_CLOEXEC);
    if (fd < 0)
        fail(path);
    return fd;
}

static unsigned some_file(uint64_t *rng) {
    return (unsigned)(below(rng, 5) ? below(rng, FILES) : FILES + below(rng, SCRATCHES));
}

/* Closes `fd` by close or close_range. Another thread's open may return the same number at once. */
static void leave(int fd, uint64_t *rng) {
    if (below(rng, 3)) {
        count(closes);
        close(fd);
    } else {
        count(close_ranges);
        close_range((unsigned)fd, (unsigned)fd, 0);
    }
}

/* Opens a file, and checks it while no other thread uses its descriptor. Then puts the file into
 * the slot, where all threads can use it. Either the slot gets the new descriptor, and the old
 * descriptor is closed; or dup2 puts the new file on the old descriptor's number. */
static void replace(struct slot *s, uint64_t *rng) {
    unsigned k = some_file(rng);
    int fd = open_file(k);
    for (uint64_t rounds = 1 + below(rng, 4); rounds; rounds--)
        check(fd, k, rng, "its owner");
    if (pthread_mutex_trylock(&s->lock) != 0) {
        leave(fd, rng);
        return;
    }
    int old = s->fd;
    if (old >= 0)
        check(old, (unsigned)s->file, rng, "whoever closes it");
    if (old >= 0 && below(rng, 3) == 0) { /* The new file gets the old number. */
        __atomic_store_n(&s->file, (int)k, __ATOMIC_RELEASE);
        count(dup2s);
        if (dup2(fd, old) != old)
            is_wrong("dup2: %s\n", strerror(errno));
        check(old, k, rng, "after dup2");
        leave(fd, rng);
        check(old, k, rng, "after dup2 and close");
    } else {
        __atomic_store_n(&s->file, (int)k, __ATOMIC_RELEASE);
        __atomic_store_n(&s->fd, fd, __ATOMIC_RELEASE);
        if (old >= 0)
            leave(old, rng);
    }
    pthread_mutex_unlock(&s->lock);
}

/* --- other things that programs do --------------------------------------------------------------
 */

/* Reads a file at offsets first, which may promote the descriptor, and then from its beginning to
 * its end. */
static void read_through(uint64_t *rng) {
    uint64_t words[MOST / 8];
    unsigned k = (unsigned)below(rng, FILES);
    int fd = open_file(k);
    size_t at = 0;
    ssize_t r;
    for (uint64_t rounds = below(rng, 3); rounds; rounds--)
        check(fd, k, rng, "before read");
    while ((r = read(fd, words, 8 + below(rng, MOST / 8 - 1) * 8)) > 0) {
        count(reads);
        if (file_of(words, (size_t)r, at) != (int)k)
            is_wrong("read: other bytes at %zu of file %u\n", at, k);
        at += (size_t)r;
        if (below(rng, 4) == 0)
            check(fd, k, rng, "between reads");
    }
    if (r < 0 || at != size_of(k))
        is_wrong("read: file %u ends at %zu\n", k, at);
    close(fd);
}

static void duplicate(uint64_t *rng) {
    unsigned k = (unsigned)below(rng, FILES);
    int fd = open_file(k);
    check(fd, k, rng, "before dup");
    int other = below(rng, 2) ? dup(fd) : fcntl(fd, F_DUPFD_CLOEXEC, 50);
    count(dups);
    lseek(other, 8, SEEK_SET);
    check(fd, k, rng, "after dup");
    if (lseek(fd, 0, SEEK_CUR) != lseek(other, 0, SEEK_CUR))
        is_wrong("dup: two positions\n");
    leave(fd, rng);
    check(other, k, rng, "after dup and close");
    close(other);
}

static void stream(uint64_t *rng) {
    char path[4096];
    unsigned k = (unsigned)below(rng, FILES);
    path_of(k, path, sizeof path);
    FILE *f = fopen(path, "re");
    if (!f)
        fail(path);
    for (int i = 0; i < 2; i++)
        check(fileno(f), k, rng, "a stream");
    count(fcloses);
    fclose(f);
}

/* Forks a child that reads and closes inherited descriptors. Checks that the child reads the right
 * file, and that the parent's descriptor is not affected. */
static void with_child(uint64_t *rng) {
    unsigned k = (unsigned)below(rng, FILES);
    int fd = open_file(k), status = 0;
    check(fd, k, rng, "before fork");
    count(forks);
    pid_t child = fork();
    if (child == 0) {
        wrong = 0;
        check(fd, k, rng, "a child");
        close(fd);
        fd = open_file(k);
        check(fd, k, rng, "a child's own");
        close_range(3, ~0U, 0);
        _exit(wrong != 0);
    }
    check(fd, k, rng, "a parent");
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        is_wrong("a child ended with %d\n", status);
    check(fd, k, rng, "after the child");
    close(fd);
}

/* Closes all descriptors in a child of vfork, as Python's subprocess does. The child runs in the
 * parent's memory, but the parent's descriptor must stay open. */
static void with_vforked_child(uint64_t *rng) {
    unsigned k = (unsigned)below(rng, FILES);
    int fd = open_file(k), status = 0;
    check(fd, k, rng, "before vfork");
    count(vforks);
    pid_t child = vfork();
    if (child == 0) {
        close_range(3, ~0U, 0);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        is_wrong("a vforked child ended with %d\n", status);
    check(fd, k, rng, "after vfork");
    close(fd);
}

static void *work(void *arg) {
    uint64_t rng = 88172645463325252ULL + (uintptr_t)arg * 1000003;
    while (!over) {
        uint64_t what = below(&rng, 400);
        if (what == 0)
            with_child(&rng);
        else if (what == 1)
            with_vforked_child(&rng);
        else if (what < 20)
            read_through(&rng);
        else if (what < 30)
            duplicate(&rng);
        else if (what < 50)
            stream(&rng);
        else if (what < 160)
            replace(&slots[below(&rng, SLOTS)], &rng);
        else
            read_slot(&slots[below(&rng, SLOTS)], &rng);
    }
    return NULL;
}

static void set_up(void) {
    struct stat st;
    char path[4096];
    for (unsigned k = FILES; k < FILES + SCRATCHES; k++)
        make_file(k);
    for (unsigned k = 0; k < FILES + SCRATCHES; k++) {
        path_of(k, path, sizeof path);
        if (stat(path, &st) != 0)
            fail(path);
        inode[k] = st.st_ino;
    }
    for (int i = 0; i < SLOTS; i++) {
        pthread_mutex_init(&slots[i].lock, NULL);
        slots[i].fd = -1;
    }
}

static void tell(void) {
    static const char *const names[] = {
#define X(name) #name,
        DEEDS(X)
#undef X
    };
    printf("{");
    for (int d = 0; d < deeds; d++)
        printf("\"%s\": %llu, ", names[d], (unsigned long long)done[d]);
    printf("\"wrong\": %llu}\n", (unsigned long long)wrong);
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    if (argc < 3)
        return 2;
    source = argv[2];
    if (strcmp(argv[1], "make") == 0) {
        for (unsigned k = 0; k < FILES; k++)
            make_file(k);
        return 0;
    }
    scratch = argv[3];
    double seconds = atof(argv[4]);
    struct timespec span = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    set_up();
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    nanosleep(&span, NULL);
    over = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    tell();
    return 0;
}
