/* Threads and forked children map files of known content, read the mappings, and unmap or change
 * parts of the mappings, while the files' copies come and go. They compare every word with the
 * expected word, also in memory that has replaced a part of a mapping.
 *
 *   make DIRECTORY                     makes the files
 *   stress DIRECTORY SECONDS SEED      prints what was done, or the first error */
#ifdef INSIDE /* the library is linked into the program, and mmap does not wait for copies */
#define WHOLE_BYTES 0
#include "preload/fill/wait.c"
#endif

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FILES 12
#define PAGE 4096UL
/* Not a multiple of the page size, so that the last page is not full. */
#define FILE_BYTES (9 * 1048576UL + 1234)
#define PAGES ((FILE_BYTES + PAGE - 1) / PAGE)
#define WORDS (PAGE / 8)
#define THREADS 4
#define MOST_MOVED 64UL
#define NOTHING UINT32_MAX /* the thread has not mapped this page, and never accesses it */

/* The expected content of a page of memory: page `page` of file `of`. If `of` is FILES, the page is
 * anonymous memory with known words. */
struct page {
    uint32_t of, page;
    /* 1 + the index of the word that this thread has set to 0 in a private mapping; 0: none */
    uint32_t written;
};

struct region {
    char *base;
    uint64_t n;
    struct page pages[PAGES];
};

static const char *directory;
static uint64_t deadline_ns;
static uint64_t words_read, mapped, cuts, moves, forks, jumps;

#define COUNT(what, n) __atomic_fetch_add(&(what), n, __ATOMIC_RELAXED)

static void die(const char *what, uint64_t a, uint64_t b) {
    dprintf(2, "%s: %#lx %#lx errno %d\n", what, a, b, errno);
    int fd = open("/proc/self/maps", O_RDONLY);
    static char text[65536];
    for (ssize_t n; (n = syscall(SYS_read, fd, text, sizeof text)) > 0;)
        if (write(2, text, (size_t)n) < 0)
            break;
    _exit(9);
}
#define CHECK(condition, a, b)                             \
    do {                                                   \
        if (!(condition))                                  \
            die(#condition, (uint64_t)(a), (uint64_t)(b)); \
    } while (0)

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t random_of(uint64_t *seed) {
    uint64_t x = *seed += 0x9E3779B97F4A7C15ULL;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ x >> 27) * 0x94D049BB133111EBULL;
    return x ^ x >> 31;
}
static uint64_t below(uint64_t *seed, uint64_t n) { return random_of(seed) % n; }

static uint64_t word_of(uint64_t of, uint64_t page, uint64_t word) {
    uint64_t x = (of + 1) << 40 ^ (page * WORDS + word);
    return x * 0x9E3779B97F4A7C15ULL ^ x >> 7;
}

static char *path_of(unsigned k, char *path) {
    snprintf(path, PATH_MAX, "%s/f%02u", directory, k);
    return path;
}

static void make(void) {
    static uint64_t page[WORDS];
    char path[PATH_MAX];
    for (unsigned k = 0; k < FILES; k++) {
        int fd = open(path_of(k, path), O_WRONLY | O_CREAT | O_TRUNC, 0644);
        CHECK(fd >= 0, k, 0);
        for (uint64_t p = 0; p < PAGES; p++) {
            uint64_t n = p == PAGES - 1 ? FILE_BYTES % PAGE : PAGE;
            for (uint64_t w = 0; w < WORDS; w++)
                page[w] = word_of(k, p, w);
            CHECK(write(fd, page, n) == (ssize_t)n, k, p);
        }
        close(fd);
    }
}

/* --- reading ---------------------------------------------------------------------------------- */

static void check_page(const struct region *r, uint64_t i) {
    const struct page *p = &r->pages[i];
    const volatile uint64_t *words = (const void *)(r->base + i * PAGE);
    uint64_t n = WORDS;
    if (p->of < FILES && p->page == PAGES - 1)
        n = FILE_BYTES % PAGE / 8;
    for (uint64_t w = 0; w < n; w++) {
        uint64_t expected = w + 1 == p->written ? 0 : word_of(p->of, p->page, w);
        CHECK(words[w] == expected, &words[w], (uint64_t)p->of << 32 | p->page);
    }
    COUNT(words_read, n);
}

/* Checks some pages of the region, or all of them. */
static void check_region(const struct region *r, uint64_t *seed, int all) {
    uint64_t step = all ? 1 : 1 + below(seed, 64);
    for (uint64_t i = all ? 0 : below(seed, step); i < r->n; i += step)
        if (r->pages[i].of != NOTHING)
            check_page(r, i);
}

/* --- changing --------------------------------------------------------------------------------- */

static void fill_own(struct region *r, uint64_t first, uint64_t n) {
    for (uint64_t i = first; i < first + n; i++) {
        uint64_t *words = (void *)(r->base + i * PAGE);
        r->pages[i] = (struct page){FILES, (uint32_t)(i + (uint64_t)r->base / PAGE % 997), 0};
        for (uint64_t w = 0; w < WORDS; w++)
            words[w] = word_of(FILES, r->pages[i].page, w);
    }
}

static void forget(struct region *r, uint64_t first, uint64_t n) {
    for (uint64_t i = first; i < first + n; i++)
        r->pages[i].of = NOTHING;
}

static int is_mine(const struct region *r, uint64_t first, uint64_t n) {
    for (uint64_t i = first; i < first + n; i++)
        if (r->pages[i].of == NOTHING)
            return 0;
    return 1;
}

static int is_all_of_files(const struct region *r, uint64_t first, uint64_t n) {
    for (uint64_t i = first; i < first + n; i++)
        if (r->pages[i].of >= FILES || r->pages[i].written)
            return 0;
    return 1;
}

static void write_private(struct region *r, uint64_t first, uint64_t n, uint64_t *seed) {
    char *at = r->base + first * PAGE;
    if (!is_all_of_files(r, first, n) || mprotect(at, n * PAGE, PROT_READ | PROT_WRITE) != 0)
        return; /* mprotect refuses: the mapping is shared, and its file is open for reading only */
    for (uint64_t i = first; i < first + n; i++) {
        uint64_t w = below(seed, FILE_BYTES % PAGE / 8);
        ((uint64_t *)(r->base + i * PAGE))[w] = 0;
        r->pages[i].written = (uint32_t)w + 1;
    }
    if (below(seed, 2))
        mprotect(at, n * PAGE, PROT_READ);
}

/* Moves up to MOST_MOVED pages with mremap, one by one, because one mremap may not cover several
 * mappings. The pages either go to reserved memory, where they are checked and unmapped, or replace
 * pages of the region at lower addresses. Then maps memory with known words at the pages' old
 * addresses, through a call that the library does not see. The library can therefore learn only
 * from the mremap that the mapping at the old addresses has ended. */
static void move_away(struct region *r, uint64_t first, uint64_t *seed) {
    char *at = r->base + first * PAGE;
    struct region moved;
    uint64_t n = 0;
    while (n < MOST_MOVED && first + n < r->n && is_all_of_files(r, first + n, 1))
        n++;
    if (!n)
        return;
    int stays = first >= n && is_mine(r, first - n, n) && below(seed, 2);
    moved.n = n;
    moved.base =
        stays ? at - n * PAGE : mmap(NULL, n * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(moved.base != MAP_FAILED, at, n);
    for (uint64_t i = 0; i < n; i++) {
        char *to = moved.base + i * PAGE;
        CHECK(mremap(at + i * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, at, i);
        moved.pages[i] = r->pages[first + i];
    }
    /* After the pages were moved, another thread may have mapped something at their old place. */
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    if (syscall(SYS_mmap, at, n * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == (long)at)
        fill_own(r, first, n);
    else
        forget(r, first, n);
    COUNT(moves, 1);
    check_region(&moved, seed, 1);
    if (stays)
        memcpy(&r->pages[first - n], moved.pages, n * sizeof *moved.pages);
    else
        CHECK(munmap(moved.base, n * PAGE) == 0, moved.base, n);
}

static void change(struct region *r, uint64_t *seed) {
    uint64_t first = below(seed, r->n), most = 1 + below(seed, r->n - first), n = 0;
    /* Changes only pages that this thread has mapped. In a hole of the region, another thread may
     * have mapped something in the meantime. */
    while (n < most && r->pages[first + n].of != NOTHING)
        n++;
    if (!n)
        return;
    char *at = r->base + first * PAGE;
    COUNT(cuts, 1);
    switch (below(seed, 8)) {
    case 0:
        CHECK(munmap(at, n * PAGE) == 0, at, n);
        forget(r, first, n);
        break;
    case 1: { /* maps anonymous memory over the pages */
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        CHECK(mmap(at, n * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == at, at, n);
        fill_own(r, first, n);
        break;
    }
    case 2:
        write_private(r, first, n, seed);
        break;
    case 3:
        move_away(r, first, seed);
        break;
    case 4:
        madvise(at, n * PAGE, (int)below(seed, 3));
        break;
    case 5:
        madvise(at, n * PAGE, MADV_DONTDUMP);
        break;
    case 6:
        mprotect(at, n * PAGE, PROT_READ);
        break;
    default: { /* maps another file, or another part of the file, over the pages */
        char path[PATH_MAX];
        unsigned k = (unsigned)below(seed, FILES);
        uint64_t from = below(seed, PAGES - n + 1);
        int fd = open(path_of(k, path), O_RDONLY | O_CLOEXEC);
        CHECK(fd >= 0, k, 0);
        int flags = (below(seed, 2) ? MAP_SHARED : MAP_PRIVATE) | MAP_FIXED;
        CHECK(mmap(at, n * PAGE, PROT_READ, flags, fd, (off_t)(from * PAGE)) == at, at, n);
        close(fd);
        for (uint64_t i = 0; i < n; i++)
            r->pages[first + i] = (struct page){k, (uint32_t)(from + i), 0};
    }
    }
}

/* --- mapping ---------------------------------------------------------------------------------- */

static void map_region(struct region *r, uint64_t *seed) {
    char path[PATH_MAX];
    unsigned k = (unsigned)below(seed, FILES);
    uint64_t from = below(seed, 3) ? 0 : below(seed, PAGES - 1);
    r->n = below(seed, 3) ? PAGES - from : 1 + below(seed, PAGES - from);
    int fd = open(path_of(k, path), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0, k, 0);
    uint64_t bytes = r->n * PAGE;
    if (from + r->n == PAGES)
        bytes = FILE_BYTES - from * PAGE;
    r->base = mmap(NULL, bytes, PROT_READ, below(seed, 2) ? MAP_SHARED : MAP_PRIVATE, fd,
                   (off_t)(from * PAGE));
    CHECK(r->base != MAP_FAILED, k, from);
    CHECK(close(fd) == 0, fd, 0);
    for (uint64_t i = 0; i < r->n; i++)
        r->pages[i] = (struct page){k, (uint32_t)(from + i), 0};
    COUNT(mapped, 1);
}

static void unmap_region(struct region *r) {
    for (uint64_t i = 0; i < r->n; i++) {
        uint64_t first = i;
        while (i < r->n && r->pages[i].of != NOTHING)
            i++;
        if (i > first)
            CHECK(munmap(r->base + first * PAGE, (i - first) * PAGE) == 0, r->base, first);
    }
}

static void child_of(struct region *r, uint64_t *seed) {
    pid_t child = fork();
    CHECK(child >= 0, 0, 0);
    COUNT(forks, 1);
    if (!child) {
        for (int i = 0; i < 20 && now_ns() < deadline_ns; i++) {
            check_region(r, seed, i == 19);
            if (below(seed, 4) == 0)
                change(r, seed);
            usleep((useconds_t)below(seed, 8000));
        }
        _exit(0);
    }
    /* While the child runs, the parent goes on reading its own memory. Then the parent waits for
     * the child. */
    for (int i = 0; i < 5; i++) {
        check_region(r, seed, 0);
        usleep((useconds_t)below(seed, 4000));
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, child, status);
}

/* --- threads ---------------------------------------------------------------------------------- */

static __thread sigjmp_buf away;
static __thread volatile sig_atomic_t may_jump;

static void jump(int signal) {
    (void)signal;
    if (may_jump) {
        may_jump = 0;
        siglongjmp(away, 1);
    }
}

static void *work(void *data) {
    uint64_t seed = (uint64_t)data;
    struct region *r =
        mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    while (now_ns() < deadline_ns) {
        map_region(r, &seed);
        uint64_t steps = below(&seed, 30);
        for (uint64_t i = 0; i < steps && now_ns() < deadline_ns; i++) {
            check_region(r, &seed, below(&seed, 8) == 0);
            if (below(&seed, 6) == 0)
                change(r, &seed);
            if (below(&seed, 3) == 0)
                move_away(r, below(&seed, r->n), &seed);
            if (below(&seed, 60) == 0)
                child_of(r, &seed);
            usleep((useconds_t)below(&seed, 10000));
        }
        check_region(r, &seed, 1);
        unmap_region(r);
    }
    return NULL;
}

/* Makes calls again and again; a signal handler jumps out of some of them. */
static void *be_interrupted(void *data) {
    uint64_t seed = (uint64_t)data;
    char path[PATH_MAX];
    char *volatile at;
    while (now_ns() < deadline_ns) {
        int fd = open(path_of((unsigned)below(&seed, FILES), path), O_RDONLY | O_CLOEXEC);
        at = mmap(NULL, 64 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
        close(fd);
        CHECK(at != MAP_FAILED, 0, 0);
        if (sigsetjmp(away, 1) == 0) {
            may_jump = 1;
            for (int i = 0; i < 200; i++)
                madvise(at, 64 * PAGE, i % 3);
        } else {
            COUNT(jumps, 1);
        }
        may_jump = 0;
        munmap(at, 64 * PAGE);
    }
    return NULL;
}

static void stress(double seconds, uint64_t seed) {
    pthread_t threads[THREADS], jumper;
    deadline_ns = now_ns() + (uint64_t)(seconds * 1e9);
    signal(SIGUSR1, jump);
    for (uint64_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(seed * 100 + i)) == 0, i, 0);
    CHECK(pthread_create(&jumper, NULL, be_interrupted, (void *)(seed * 100 + 99)) == 0, 0, 0);
    while (now_ns() < deadline_ns) {
        pthread_kill(jumper, SIGUSR1);
        usleep(700);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_join(jumper, NULL);
    printf("words=%lu mapped=%lu changes=%lu moves=%lu forks=%lu jumps=%lu\n", words_read, mapped,
           cuts, moves, forks, jumps);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    directory = argv[2];
    if (strcmp(argv[1], "make") == 0)
        make();
    else
        stress(atof(argv[3]), strtoull(argv[4], NULL, 10));
    return 0;
}
