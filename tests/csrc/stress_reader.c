/* A program into which the preload library is linked. Its threads read files of known content in
 * every way, while the test makes daemons, copies and files come and go.
 *
 *   make ROOT FIRST COUNT    makes the files; runs without a session
 *   loop ROOT KNOWN MOST PAUSE_US
 *                            reads until standard input ends. Files from KNOWN to MOST may be
 *                            missing. After each file, a thread pauses for PAUSE_US. Standard
 *                            output must be a file; it holds the number of files read so far.
 *   once ROOT KNOWN FD K     run by a child after its exec; the child has inherited FD, a
 *                            descriptor of file K
 */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "stress.h"

#define READERS 3
#define OWN_FILES 64 /* files that the program itself changes */

extern char **environ;
static const char *root;
/* path of this program's executable, which forked children execute again */
static char me[PATH_BYTES];
static unsigned known, most;
static int root_fd, stopping;
static useconds_t pause_us;
static uint64_t files_read;

static int is_over(void) { return __atomic_load_n(&stopping, __ATOMIC_RELAXED); }

/* --- one file --------------------------------------------------------------------------------- */

/* Writes one of the paths by which programs may name the file. Relative paths start at the root,
 * which is the working directory. */
static void spell(unsigned k, uint64_t *rng, char *path, int relative_only) {
    unsigned d = k % DIRECTORIES, way = (unsigned)below(rng, 10);
    char name[PATH_BYTES];
    const char *top = relative_only || way == 0 ? "." : root;
    int n = 0;
    if (way == 1)
        n = snprintf(path, PATH_BYTES, "%s/d%02u/..//d%02u/f%05u", top, (d + 1) % DIRECTORIES, d,
                     k);
    else if (way == 2)
        n = snprintf(path, PATH_BYTES, "%s/./l%02u/f%05u", top, d, k);
    else if (way == 3)
        n = snprintf(path, PATH_BYTES, "%s/l%02u/../l%02u/./f%05u", top, d, d, k);
    else
        n = snprintf(path, PATH_BYTES, "%s/%s", top, name_of(k, name));
    CHECK(n < PATH_BYTES);
}

static int may_be_missing(unsigned k) { return k >= known && errno == ENOENT; }

static void same_file(unsigned k, const struct stat *got) {
    struct stat real;
    char path[PATH_BYTES], name[PATH_BYTES];
    CHECK(snprintf(path, sizeof path, "%s/%s", root, name_of(k, name)) < PATH_BYTES);
    CHECK(syscall(SYS_newfstatat, AT_FDCWD, path, &real, 0) == 0);
    CHECK(got->st_dev == real.st_dev && got->st_ino == real.st_ino);
    CHECK(got->st_mode == real.st_mode && got->st_nlink == real.st_nlink);
    CHECK(got->st_uid == real.st_uid && (uint64_t)got->st_size == size_of(k));
    CHECK(got->st_mtim.tv_sec == real.st_mtim.tv_sec);
    CHECK(got->st_mtim.tv_nsec == real.st_mtim.tv_nsec);
}

static void read_on(int fd, unsigned k, uint64_t at, uint64_t *rng) {
    char buffer[16384];
    for (;;) {
        uint64_t want = 1 + below(rng, sizeof buffer);
        struct iovec parts[2] = {{buffer, want / 2}, {buffer + want / 2, want - want / 2}};
        ssize_t n = want % 3 ? read(fd, buffer, want) : readv(fd, parts, 2);
        CHECK(n >= 0);
        if (n == 0)
            break;
        check_bytes(k, 0, at, buffer, (uint64_t)n);
        at += (uint64_t)n;
    }
    CHECK(at == size_of(k));
}

static void read_anywhere(int fd, unsigned k, uint64_t *rng) {
    char buffer[4096];
    uint64_t size = size_of(k);
    for (int i = 0; i < 4; i++) {
        uint64_t at = below(rng, size + 10), want = 1 + below(rng, sizeof buffer);
        uint64_t left = at < size ? size - at : 0;
        ssize_t n = pread(fd, buffer, want, (off_t)at);
        CHECK(n == (ssize_t)(left < want ? left : want));
        check_bytes(k, 0, at, buffer, (uint64_t)n);
    }
}

static void read_mapped(int fd, unsigned k) {
    uint64_t size = size_of(k);
    if (!size)
        return;
    char *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    check_bytes(k, 0, 0, map, size);
    /* The length is rounded up to whole pages. At a munmap, ThreadSanitizer forgets only the
     * accesses within the given length. Without the rounding, it would remember accesses to the
     * rest of the last page. If the library later maps other memory there, by a call that
     * ThreadSanitizer does not see, these accesses would seem to be accesses to the new memory. */
    CHECK(munmap(map, (size + 4095) / 4096 * 4096) == 0);
}

/* Opens the descriptor's file again, through the descriptor's name in /proc. The name of a copy's
 * descriptor leads to the copy. */
static int open_again(int fd, unsigned k) {
    char path[32];
    struct stat st;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    CHECK(stat(path, &st) == 0);
    same_file(k, &st);
    int again = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(again >= 0 && fstat(again, &st) == 0);
    same_file(k, &st);
    CHECK(close(fd) == 0);
    return again;
}

/* Closes the descriptor and goes on reading through a duplicate of it. The duplicate must have the
 * offset that the descriptor had. */
static int go_on_elsewhere(int fd, unsigned k, uint64_t *rng) {
    char begin[300];
    ssize_t n = read(fd, begin, 1 + below(rng, sizeof begin));
    CHECK(n >= 0);
    check_bytes(k, 0, 0, begin, (uint64_t)n);
    int other = below(rng, 2) ? dup(fd) : fcntl(fd, F_DUPFD_CLOEXEC, 20);
    CHECK(other >= 0 && close(fd) == 0);
    read_on(other, k, (uint64_t)n, rng);
    return other;
}

/* Reads the file through a descriptor. Returns 0 if the file does not exist (yet). */
static int read_descriptor(unsigned k, uint64_t *rng) {
    char path[PATH_BYTES];
    struct stat st;
    int by_root = below(rng, 4) == 0;
    spell(k, rng, path, by_root);
    int fd = by_root ? openat(root_fd, path, O_RDONLY | O_CLOEXEC) : open(path, O_RDONLY);
    if (fd < 0 && may_be_missing(k))
        return 0;
    if (fd < 0)
        die("%s cannot be opened", path);
    CHECK(fstat(fd, &st) == 0);
    same_file(k, &st);
    if (below(rng, 8) == 0)
        fd = open_again(fd, k);
    switch (below(rng, 5)) {
    case 0:
        read_anywhere(fd, k, rng);
        break;
    case 1:
        read_mapped(fd, k);
        break;
    case 2:
        fd = go_on_elsewhere(fd, k, rng);
        break;
    default:
        read_on(fd, k, 0, rng);
    }
    CHECK(close(fd) == 0);
    return 1;
}

static int read_stream(unsigned k, uint64_t *rng) {
    char path[PATH_BYTES], buffer[3000];
    uint64_t at = 0;
    spell(k, rng, path, 0);
    /* glibc does not free a stream whose freopen fails, so freopen is used only for files that
     * exist. */
    int anew = k < known && below(rng, 2);
    FILE *f = anew ? freopen(path, "r", fopen("/dev/null", "r")) : fopen(path, "r");
    if (!f && may_be_missing(k))
        return 0;
    CHECK(f);
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, f)) > 0; at += n)
        check_bytes(k, 0, at, buffer, n);
    CHECK(!ferror(f) && at == size_of(k));
    CHECK(fclose(f) == 0);
    return 1;
}

/* --- the threads ------------------------------------------------------------------------------ */

static void *read_files(void *number) {
    uint64_t rng = (uintptr_t)number;
    while (!is_over()) {
        unsigned k = (unsigned)below(&rng, most);
        if (below(&rng, 4) ? read_descriptor(k, &rng) : read_stream(k, &rng))
            __atomic_fetch_add(&files_read, 1, __ATOMIC_RELAXED);
        if (pause_us)
            usleep(pause_us);
    }
    return NULL;
}

static int ask(unsigned k, uint64_t *rng, struct stat *st) {
    char path[PATH_BYTES];
    struct statx x;
    spell(k, rng, path, 0);
    switch (below(rng, 4)) {
    case 0:
        return stat(path, st);
    case 1:
        return lstat(path, st);
    case 2:
        spell(k, rng, path, 1);
        return fstatat(root_fd, path, st, 0);
    default:
        if (statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &x) != 0)
            return -1;
        CHECK(x.stx_size == size_of(k));
        return stat(path, st);
    }
}

static void *look_at_files(void *number) {
    uint64_t rng = (uintptr_t)number;
    while (!is_over()) {
        struct stat st;
        unsigned k = (unsigned)below(&rng, most);
        if (ask(k, &rng, &st) == 0)
            same_file(k, &st);
        else
            CHECK(may_be_missing(k));
        /* After a chdir or fchdir, the library must find out again where relative paths start. */
        if (below(&rng, 16) == 0)
            CHECK((below(&rng, 2) ? chdir(root) : fchdir(root_fd)) == 0);
        if (pause_us)
            usleep(pause_us);
    }
    return NULL;
}

static void own_name(unsigned i, char *path) {
    CHECK(snprintf(path, PATH_BYTES, "%s/own/w%02u", root, i) < PATH_BYTES);
}

static void change(const char *path, unsigned i, unsigned version, uint64_t *rng) {
    char other[PATH_BYTES];
    int fd = -1;
    switch (below(rng, 4)) {
    case 0:
        fd = open(path, O_WRONLY | O_TRUNC | O_CREAT, 0644);
        break;
    case 1:
        CHECK(truncate(path, 0) == 0 && chmod(path, 0644) == 0);
        fd = open(path, O_RDWR);
        break;
    case 2: {
        FILE *f = fopen(path, "w");
        CHECK(f);
        fd = dup(fileno(f));
        CHECK(fclose(f) == 0);
        break;
    }
    default:
        CHECK(snprintf(other, sizeof other, "%s/own/young", root) < PATH_BYTES);
        fd = creat(other, 0600);
        CHECK(fd >= 0 && rename(other, path) == 0);
    }
    CHECK(fd >= 0);
    write_all(fd, i, version);
    CHECK(close(fd) == 0);
    CHECK(utimensat(AT_FDCWD, path, NULL, 0) == 0);
}

/* Renames the directory of the program's own files, and renames it back at once. Nevertheless, all
 * files in the directory count as changed afterwards. */
static void move_own_files(void) {
    char path[PATH_BYTES], other[PATH_BYTES];
    CHECK(snprintf(path, sizeof path, "%s/own", root) < PATH_BYTES);
    CHECK(snprintf(other, sizeof other, "%s/elsewhere", root) < PATH_BYTES);
    CHECK(rename(path, other) == 0 && rename(other, path) == 0);
}

/* Changes files and reads them. Once this thread has changed a file, it must never read the old
 * content from the copy. */
static void *change_files(void *number) {
    uint64_t rng = (uintptr_t)number;
    unsigned version[OWN_FILES] = {0};
    char path[PATH_BYTES], buffer[2048];
    while (!is_over()) {
        unsigned i = (unsigned)below(&rng, OWN_FILES);
        own_name(i, path);
        if (below(&rng, 64) == 0)
            change(path, i, ++version[i], &rng);
        if (below(&rng, 2000) == 0)
            move_own_files();
        int fd = open(path, O_RDONLY);
        CHECK(fd >= 0);
        ssize_t n = pread(fd, buffer, sizeof buffer, 0);
        CHECK(n == (ssize_t)(size_of(i) < sizeof buffer ? size_of(i) : sizeof buffer));
        check_bytes(i, version[i], 0, buffer, (uint64_t)n);
        CHECK(close(fd) == 0);
        usleep(1000);
    }
    return NULL;
}

/* --- children --------------------------------------------------------------------------------- */

static void ends_well(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (status != 0)
        die("a child ended with status %#x", (unsigned)status);
}

/* Reads files in a forked child. Uses no streams, because streams allocate memory, and another
 * thread of the parent may have held a lock of the allocator at the fork. That thread does not
 * exist in the child, so the child would wait for the lock forever. */
static void in_child(int fd, unsigned k, uint64_t at, uint64_t *rng) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    read_on(fd, k, at, rng);
    for (int i = 0; i < 5; i++)
        read_descriptor((unsigned)below(rng, known), rng);
    _exit(0);
}

static void start_anew(int fd, unsigned k) {
    char number[16], file[16], count[16];
    snprintf(count, sizeof count, "%u", known);
    snprintf(number, sizeof number, "%d", fd);
    snprintf(file, sizeof file, "%u", k);
    char *const argv[] = {me, "once", (char *)root, count, number, file, NULL};
    pid_t child;
    CHECK(posix_spawn(&child, me, NULL, NULL, argv, environ) == 0);
    ends_well(child);
}

static void *have_children(void *number) {
    uint64_t rng = (uintptr_t)number;
    char path[PATH_BYTES], begin[64];
    for (unsigned round = 0; !is_over(); round++) {
        unsigned k = (unsigned)below(&rng, known);
        spell(k, &rng, path, 0);
        int fd = open(path, O_RDONLY);
        CHECK(fd >= 0);
        ssize_t n = read(fd, begin, sizeof begin);
        CHECK(n >= 0);
        check_bytes(k, 0, 0, begin, (uint64_t)n);
        if (round % 4 == 3) {
            start_anew(fd, k);
        } else {
            pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0)
                in_child(fd, k, (uint64_t)n, &rng);
            ends_well(child);
        }
        CHECK(close(fd) == 0);
        usleep(20000);
    }
    return NULL;
}

/* --- the commands ----------------------------------------------------------------------------- */

static int loop(void) {
    void *(*const roles[])(void *) = {look_at_files, change_files, have_children};
    pthread_t thread[READERS + 3];
    char line[32];
    for (uintptr_t i = 0; i < READERS + 3; i++)
        CHECK(pthread_create(&thread[i], NULL, i < READERS ? read_files : roles[i - READERS],
                             (void *)(i + 1)) == 0);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 50) == 0) {
        int n = snprintf(line, sizeof line, "%012llu\n",
                         (unsigned long long)__atomic_load_n(&files_read, __ATOMIC_RELAXED));
        CHECK(pwrite(1, line, (size_t)n, 0) == n);
    }
    __atomic_store_n(&stopping, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < READERS + 3; i++)
        pthread_join(thread[i], NULL);
    return 0;
}

static int once(int fd, unsigned k) {
    uint64_t rng = k;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* Checks only the bytes of FD, and not its attributes. FD may be a descriptor of a copy that
     * was made by a daemon unknown to this process. Then the library cannot find out to which file
     * the copy belongs. */
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    read_on(fd, k, 0, &rng);
    for (int i = 0; i < 30; i++) {
        read_descriptor((unsigned)below(&rng, known), &rng);
        read_stream((unsigned)below(&rng, known), &rng);
    }
    return 0;
}

static int make(unsigned first, unsigned count) {
    char path[PATH_BYTES];
    make_files(root, first, count);
    CHECK(snprintf(path, sizeof path, "%s/own", root) < PATH_BYTES);
    if (mkdir(path, 0755) != 0)
        return 0;
    for (unsigned i = 0; i < OWN_FILES; i++) {
        own_name(i, path);
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
        CHECK(fd >= 0);
        write_all(fd, i, 0);
        CHECK(close(fd) == 0);
    }
    return 0;
}

int main(int argc, char **argv) {
    CHECK(argc >= 4);
    ssize_t n = readlink("/proc/self/exe", me, sizeof me - 1);
    CHECK(n > 0);
    root = argv[2];
    known = most = (unsigned)atoi(argv[3]);
    if (strcmp(argv[1], "make") == 0)
        return make(known, (unsigned)atoi(argv[4]));
    root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(root_fd >= 0 && chdir(root) == 0);
    if (strcmp(argv[1], "once") == 0)
        return once(atoi(argv[4]), (unsigned)atoi(argv[5]));
    most = (unsigned)atoi(argv[4]);
    pause_us = (useconds_t)atoi(argv[5]);
    return loop();
}
