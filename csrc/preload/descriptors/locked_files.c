#include "preload/descriptors/locked_files.h"

#include <signal.h>
#include <string.h>

#include "preload/process/attributes.h"
#include "preload/process/proc.h"
#include "preload/process/text.h"
#include "shared/catalog.h"
#include "shared/sys.h"

/* --- locked files ----------------------------------------------------------------------------- */

/* A Bloom filter of the files with locks (two bits per file). Its size is fixed, and bits are never
 * cleared. So the filter may also report a file without locks: rarely, or often if the process
 * locks thousands of files. A wrong report only costs time. */
#define LOCKED_BITS 8192
static uint64_t locked[LOCKED_BITS / 64] SELDOM;

static uint64_t bit_of(uint64_t dev, uint64_t ino, int which) {
    return (monarch_mix(ino ^ monarch_mix(dev)) >> (which * 32)) % LOCKED_BITS;
}

int monarch_has_locks(uint64_t dev, uint64_t ino) {
    return monarch_bit_is_set(locked, bit_of(dev, ino, 0)) &&
           monarch_bit_is_set(locked, bit_of(dev, ino, 1));
}

void monarch_note_locks(uint64_t dev, uint64_t ino) {
    for (int i = 0; i < 2; i++) {
        uint64_t bit = bit_of(dev, ino, i);
        __atomic_fetch_or(&locked[bit / 64], 1ULL << (bit % 64), __ATOMIC_SEQ_CST);
    }
}

/* --- closing ---------------------------------------------------------------------------------- */

/* Maximum number of locked ranges of one file that a call of monarch_close_unseen preserves. Locks
 * on further ranges are lost. */
#define MOST 128
#define WORD 24

/* A closing is a call of monarch_close_unseen. The lower half of `under_way` counts the closings
 * that have begun but not ended. The upper half is the pid of the process that makes these
 * closings. By this pid, a forked child finds out that a closing is its parent's. The child must
 * not wait for that closing, because no thread of the child will end it. `so_far` counts all
 * closings that have begun. */
static uint64_t under_way;
static uint32_t so_far;
/* Maximum time [ns] that monarch_await_closings waits for the end of all closings. A closing takes
 * microseconds, unless the source hangs. */
#define CLOSING_NS 5000000000ULL

struct saved_locks {
    struct stat file;
    int but; /* the descriptor that is being closed */
    unsigned count;
    struct range {
        int fd; /* the descriptor through which the lock was taken */
        struct flock lock;
    } range[MOST];
    struct monarch_reader reader;
};

/* --- the process's locks ---------------------------------------------------------------------- */

/* Reads the next word of a line into `word` (WORD bytes), and the character after it into *end. A
 * longer word is truncated. Returns 0 if the line has no further word. */
static int next_word(struct monarch_reader *r, char *word, char *end) {
    unsigned n = 0;
    do
        *end = monarch_reader_next(r);
    while (*end == ' ' || *end == '\t');
    for (; *end > ' '; *end = monarch_reader_next(r))
        if (n < WORD - 1)
            word[n++] = *end;
    word[n] = 0;
    return n > 0;
}

static int64_t number(const char *digits) {
    int64_t v = 0;
    for (; *digits >= '0' && *digits <= '9'; digits++)
        v = v * 10 + (*digits - '0');
    return v;
}

/* Reads a line of /proc/self/fdinfo/N. If the line describes a POSIX lock, stores the lock in *h.
 * Example of such a line: "lock: 1: POSIX ADVISORY READ 1234 fe:00:5678 0 EOF". Returns 0 at the
 * end of the file. */
static int read_line(struct saved_locks *h, int fd) {
    char word[WORD], end = ' ';
    int field = 0, is_lock = 1, upto_end = 0;
    struct flock lock = {.l_whence = SEEK_SET, .l_type = F_RDLCK};
    while (end && end != '\n' && next_word(&h->reader, word, &end)) {
        if (field == 0)
            is_lock &= !strcmp(word, "lock:");
        if (field == 2)
            is_lock &= !strcmp(word, "POSIX");
        if (field == 4 && word[0] == 'W')
            lock.l_type = F_WRLCK;
        if (field == 7)
            lock.l_start = number(word);
        if (field == 8 && !(upto_end = !strcmp(word, "EOF")))
            lock.l_len = number(word) - lock.l_start + 1;
        field++;
    }
    if (is_lock && field == 9 && h->count < MOST)
        h->range[h->count++] = (struct range){fd, lock};
    return end == '\n';
}

static int is_same(const struct saved_locks *h, int fd) {
    struct stat st;
    return sys_fstat(fd, &st) == 0 && st.st_ino == h->file.st_ino && st.st_dev == h->file.st_dev;
}

static void read_locks_of(int fd, void *data) {
    struct saved_locks *h = data;
    char path[64];
    if (fd == h->but || !is_same(h, fd))
        return;
    put_number(put(path, "/proc/self/fdinfo/"), (uint64_t)fd, 10, 1);
    if (!monarch_reader_open(&h->reader, path))
        return;
    while (read_line(h, fd))
        ;
    monarch_reader_close(&h->reader);
}

/* --- preserving locks ------------------------------------------------------------------------- */

/* Takes the process's read locks a second time, so that they stay in force while a descriptor of
 * the file is closed. Returns a mapping, or a negative number if there is none. The caller ends the
 * second locks by removing the mapping.
 *
 * The second locks belong to a new open file, not to the process. This function closes the new open
 * file's descriptor at once, but the mapping still refers to the open file. If the caller closed a
 * descriptor to end the second locks, the locks that take_again has just taken would be lost too.
 *
 * A write lock cannot be held twice. So another process may take such a lock after the close and
 * before take_again. */
static long hold_meanwhile(const struct saved_locks *h) {
    char path[64];
    put_number(put(path, "/proc/self/fd/"), (uint64_t)h->but, 10, 1);
    int own = sys_openat(AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (own < 0)
        return -1;
    for (unsigned i = 0; i < h->count; i++) {
        struct flock lock = h->range[i].lock;
        if (lock.l_type == F_RDLCK)
            sys_fcntl(own, F_OFD_SETLK, (long)&lock);
    }
    long page = sys6(SYS_mmap, 0, 4096, PROT_NONE, MAP_PRIVATE, own, 0);
    sys_close(own);
    return page;
}

static void take_again(const struct saved_locks *h, int kept) {
    for (unsigned i = 0; i < h->count; i++) {
        const struct range *r = &h->range[i];
        /* A read lock can be taken through any readable descriptor of the file, such as `kept`. A
         * write lock needs a writable descriptor. The library has none, but the program has r->fd.
         * By now, r->fd may refer to another file, so is_same checks it. */
        int fd = r->lock.l_type == F_RDLCK && kept >= 0 ? kept : r->fd;
        if (is_same(h, fd))
            sys_fcntl(fd, F_SETLK, (long)&r->lock);
    }
}

static uint32_t count_of(uint64_t word, uint64_t self) {
    return word >> 32 == self ? (uint32_t)word : 0;
}

static void count(int more) {
    uint64_t seen = __atomic_load_n(&under_way, __ATOMIC_SEQ_CST), next;
    uint64_t self = (uint32_t)sys_getpid();
    do {
        uint32_t n = count_of(seen, self);
        next = self << 32 | (more ? n + 1 : n ? n - 1 : 0);
    } while (!__atomic_compare_exchange_n(&under_way, &seen, next, 0, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
}

/* `under_way` is changed first, because a thread that sees the new `so_far` must also see the new
 * `under_way`. */
static void begin_closing(void) {
    count(1);
    __atomic_fetch_add(&so_far, 1, __ATOMIC_SEQ_CST);
}

int monarch_await_closings(uint32_t *closings) {
    uint64_t since_ns = 0, seen;
    unsigned n = 0;
    *closings = __atomic_load_n(&so_far, __ATOMIC_SEQ_CST);
    while ((uint32_t)(seen = __atomic_load_n(&under_way, __ATOMIC_SEQ_CST)) &&
           count_of(seen, (uint32_t)sys_getpid())) {
        since_ns = since_ns ? since_ns : monarch_now_ns();
        if (monarch_now_ns() - since_ns > CLOSING_NS)
            return 0;
        sys_relax(n++);
    }
    return 1;
}

int monarch_has_closed_since(uint32_t closings) {
    return __atomic_load_n(&so_far, __ATOMIC_SEQ_CST) != closings;
}

static void close_and_keep_locks(int fd, int kept) {
    struct stat st;
    struct saved_locks *h = NULL;
    long page = -1; /* no mapping */
    if (sys_fstat(fd, &st) == 0 && monarch_has_locks(st.st_dev, st.st_ino))
        h = sys_new_pages(sizeof *h);
    if (h) {
        h->file = st;
        h->but = fd;
        monarch_for_descriptors(read_locks_of, h);
    }
    if (h && h->count)
        page = hold_meanwhile(h);
    sys_close(fd);
    if (h && h->count)
        take_again(h, kept);
    if (is_address(page))
        sys_unmap((void *)page, 4096);
    if (h)
        sys_unmap(h, sizeof *h);
}

/* Signals are blocked, because a signal handler that interrupts this function, and then takes a
 * lock, would wait in vain for the end of this function. */
void monarch_close_unseen(int fd, int kept) {
    uint64_t signals = sys_signals(SIG_BLOCK, MOST_SIGNALS);
    begin_closing();
    close_and_keep_locks(fd, kept);
    count(0);
    sys_signals(SIG_SETMASK, signals);
}
