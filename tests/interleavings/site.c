#include "site.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "preload/process/calls.h"
#include "preload/session/segments.h"
#include "preload/session/session.h"
#include "publish/writer.h"
#include "scheduler.h"

/* Size of one write [bytes]. It is small, because each forked process gets its own pages for the
 * buffer. */
#define BLOCK_BYTES 32768

struct site site;
const char *const names[FILES] = {"small", "other", "medium", "large"};

static struct monarch_catalog *snapshot;
static unsigned last_copy;
static int open_before; /* number of open descriptors at the start of the run */

/* --- files --------------------------------------------------------------------------------------
 */

uint64_t size_of(unsigned file) {
    return file == LARGE ? LARGE_BYTES : file == MEDIUM ? MEDIUM_BYTES : SMALL_BYTES;
}

static uint64_t word_at(unsigned file, unsigned version, uint64_t i) {
    return (uint64_t)file << 56 | (uint64_t)version << 48 | i;
}

static void make_bytes(unsigned file, unsigned version, uint64_t *to, uint64_t from, uint64_t n) {
    for (uint64_t i = 0; i < n / 8; i++)
        to[i] = word_at(file, version, from / 8 + i);
}

unsigned version_of(unsigned file, const uint64_t *got, uint64_t from, uint64_t n) {
    unsigned version = got[0] >> 48 & 255;
    for (uint64_t i = 0; i < n / 8; i++)
        if (got[i] != word_at(file, version, from / 8 + i))
            wrong("%s: word %llu is %llx", names[file], (unsigned long long)i,
                  (unsigned long long)got[i]);
    return version;
}

const char *path_of(const char *directory, const char *name) {
    static __thread char paths[4][512];
    static __thread unsigned used;
    char *path = paths[used++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s/%s", site.root, directory, name);
    return path;
}

const char *name_of_copy(unsigned number) {
    static __thread char name[32];
    snprintf(name, sizeof name, "%0*x", MONARCH_COPY_NAME, number);
    return name;
}

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

int raw_open(const char *path, int flags) {
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0400);
}

void put_bytes(const char *path, unsigned file, unsigned version, uint64_t from, uint64_t n) {
    static uint64_t bytes[BLOCK_BYTES / 8];
    int fd = raw_open(path, O_WRONLY | O_CREAT);
    EXPECT(fd >= 0);
    for (uint64_t end = from + n; from < end; from += n) {
        n = end - from < BLOCK_BYTES ? end - from : BLOCK_BYTES;
        make_bytes(file, version, bytes, from, n);
        EXPECT(syscall(SYS_pwrite64, fd, bytes, n, from) == (long)n);
    }
    syscall(SYS_close, fd);
}

unsigned make_copy(unsigned file, unsigned version, uint64_t n) {
    put_bytes(path_of("tier", name_of_copy(++last_copy)), file, version, 0, n);
    return last_copy;
}

/* Returns the path of a file that exists during all runs. Before each run, restore() makes copy
 * `number` as a hard link to this file, so the copy has the same inode number in every run. The
 * inode number determines the copy's place in an index, and thereby the steps of a search. */
static const char *kept_copy(unsigned number) {
    char name[32];
    snprintf(name, sizeof name, "copy.%u", number);
    return path_of("kept", name);
}

void drop_copy(unsigned number) {
    syscall(SYS_unlinkat, AT_FDCWD, path_of("tier", name_of_copy(number)), 0);
}

uint64_t inode_of(const char *path) {
    struct stat st;
    EXPECT(syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0) == 0);
    return st.st_ino;
}

/* Puts the first version of each file back into the source, as a hard link to the file in `kept`.
 * So the file in the source has the same inode number in every run. */
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
    struct pollfd looked_at[64];
    int n = 0;
    for (int fd = 0; fd < 64; fd++)
        looked_at[fd] = (struct pollfd){.fd = fd};
    EXPECT(syscall(SYS_poll, looked_at, 64, 0) >= 0);
    for (int fd = 0; fd < 64; fd++)
        n += !(looked_at[fd].revents & POLLNVAL);
    return n;
}

/* --- before and after each run -------------------------------------------------------------------
 */

/* Forgets that an entry's file has changed. */
static void forget_change(uint64_t ino) {
    uint64_t dev = site.control->source[0].dev;
    uint64_t bits[2] = {monarch_filter_bit(dev, ino), monarch_filter_second(dev, ino)};
    for (int i = 0; i < 2; i++)
        site.clients->changed[bits[i] / 64] = 0;
}

void restore(void) {
    restore_source();
    for (unsigned number = 1; number <= MOST_COPIES; number++) {
        const char *path = path_of("tier", name_of_copy(number));
        drop_copy(number);
        EXPECT(syscall(SYS_linkat, AT_FDCWD, kept_copy(number), AT_FDCWD, path, 0) == 0);
        EXPECT(syscall(SYS_truncate, path, 0) == 0);
    }
    memcpy(site.catalog, snapshot, snapshot->bytes);
    memset(site.clients->demand, 0, sizeof site.clients->demand);
    /* Files that trials make have new inode numbers in each run. If their bits in this filter were
     * not cleared, the bits of thousands of runs would add up, and later runs would take other
     * steps. */
    memset(site.clients->changed_coarse, 0, sizeof site.clients->changed_coarse);
    site.clients->silent_at = 0;
    for (unsigned k = 0; k < FILES; k++) {
        forget_change(monarch_entries(site.catalog)[site.ids[k]].ino);
        *monarch_claim_at(site.clients, site.ids[k]) = 0;
    }
    memset(site.clients->wanted.word, 0, 64);
    memset(site.clients->wanted.summary, 0, 64);
    memset(site.fills->word, 0, sizeof site.fills->word);
}

/* The counters are in the padding of a segment: all runs share the segment, and the library does
 * not use the padding. */
void note_met(enum met what) { site.clients->stats[0].unused[what]++; }
uint64_t times_met(enum met what) { return site.clients->stats[0].unused[what]; }

void note_descriptors(void) { open_before = open_descriptors(); }

void check_descriptors(void) { EXPECT(open_descriptors() == open_before); }

/* --- once --- */

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
    int directory = raw_open(site.control->source[0].path, O_RDONLY | O_DIRECTORY);
    if (monarch_statx_entry(directory, 0, names[file], 0, &e, target, sizeof target) != 0)
        exit(2);
    e.path = 0;
    e.path_len = (uint16_t)strlen(names[file]);
    if (monarch_catalog_add(site.writer, &e, 1, names[file], &site.ids[file], &added) != 1)
        exit(2);
    syscall(SYS_close, directory);
}

void set_up(const char *root) {
    char name[64];
    site.root = root;
    site.control = map_file("control");
    site.clients = map_file("clients");
    site.fills = map_file("fills");
    snprintf(name, sizeof name, "catalog.%llu", (unsigned long long)site.control->generation);
    site.catalog = map_file(name);
    site.writer = monarch_writer_new();
    site.writer->catalog = site.catalog;
    for (unsigned k = 0; k < FILES; k++)
        add_file(k);
    for (unsigned number = 1; number <= MOST_COPIES; number++)
        put_bytes(kept_copy(number), OTHER, 0, 0, 0);
    /* For a shared mapping, fork copies no page tables. */
    snapshot =
        mmap(NULL, site.catalog->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(snapshot != MAP_FAILED);
    memcpy(snapshot, site.catalog, site.catalog->bytes);
    /* From now on, accesses to counters, and to pointers that never change, are no steps, because
     * it does not matter when they are made. */
    struct session *s = monarch_current;
    stand_behind_the_library();
    ignore_memory(s->clients->stats, sizeof s->clients->stats + sizeof s->clients->rank);
    ignore_memory(&monarch_real, sizeof monarch_real);
}
