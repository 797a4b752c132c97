#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shared/doorbell.h"

/* If is_noted is set, sleep_on does not sleep. It only records the last sleep (`nap`) and the
 * number of sleeps (`naps`) of the daemon's loop. */
static int is_noted, naps;
static struct timespec nap;
static long sleep_on(long number, uint32_t *word, int how, uint32_t seen,
                     const struct timespec *limit, void *none, int zero);
#define syscall sleep_on
#include "clients/requests.c"
#undef syscall

#include "checks.h"
#include "shared/clock.h"

#define FILES 9000 /* so many that the summary of a bitmap uses three words */

static struct monarch_engine *e;
static struct monarch_clients *m;

static long sleep_on(long number, uint32_t *word, int how, uint32_t seen,
                     const struct timespec *limit, void *none, int zero) {
    if (!is_noted)
        return syscall(number, word, how, seen, limit, none, zero);
    CHECK(word == &m->doorbell && how == FUTEX_WAIT && m->sleeping == 1);
    nap = *limit;
    naps++;
    return 0;
}

static void make(void) {
    e = make_engine(4096);
    m = e->clients;
}

/* Each bit that is set is taken once, and the bits are returned in ascending order. This also holds
 * for bits at the edges of a word, and at the edges of a word of the summary. A bit beyond the
 * catalog's end is dropped. */
TEST(bits_are_taken_once_and_in_order) {
    const uint64_t set[] = {0, 1, 63, 64, 4095, 4096, 8191, 8192, 8999};
    uint64_t ids[FILES];
    make();
    for (int i = 0; i < 9; i++)
        monarch_set_bit(&m->read, set[i]);
    monarch_set_bit(&m->read, FILES);
    SAME(monarch_take_bits(&m->read, FILES, ids, FILES), 9);
    for (int i = 0; i < 9; i++)
        SAME(ids[i], set[i]);
    SAME(monarch_take_bits(&m->read, FILES, ids, FILES), 0);
    /* The first call has dropped bit FILES, because this bit was beyond the call's limit. */
    SAME(monarch_take_bits(&m->read, FILES + 10, ids, FILES), 0);
    monarch_set_bit(&m->read, 4096);
    /* the bit is just beyond the first word of the summary */
    SAME(monarch_take_bits(&m->read, 4096, ids, FILES), 0);
    SAME(monarch_take_bits(&m->read, 4097, ids, FILES), 1);
    for (uint64_t i = 0; i < sizeof m->read.summary / sizeof *m->read.summary; i++)
        SAME(m->read.summary[i], 0); /* the summary is empty, so the call searches no word */
    free_engine(e);
}

/* A call takes at most as many bits as it has room for. The others stay for later calls. */
TEST(bits_that_do_not_fit_are_taken_later) {
    uint64_t ids[200];
    make();
    for (uint64_t id = 0; id < 300; id++)
        monarch_set_bit(&m->wanted, id);
    /* less room than the 64 bits of one word */
    SAME(monarch_take_bits(&m->wanted, 300, ids, 63), 0);
    uint64_t all = 0;
    for (uint64_t n; (n = monarch_take_bits(&m->wanted, 300, ids, 150)); all += n) {
        CHECK(n <= 150);
        for (uint64_t i = 0; i < n; i++)
            SAME(ids[i], all + i);
    }
    SAME(all, 300);
    free_engine(e);
}

static struct monarch_catalog *two_sources(void) {
    struct monarch_catalog *c = make_catalog(64);
    e->control->sources = 3;
    for (unsigned s = 0; s < 3; s++)
        e->control->source[s].dev = 70 + (s > 0); /* sources 1 and 2 are on one device */
    for (int i = 0; i < 6; i++) {
        char name[] = {(char)('a' + i), 0};
        add_entry(c, name,
                  (struct monarch_entry){
                      .kind = MONARCH_FILE, .source = (uint8_t)(i % 3), .ino = 100 + (uint64_t)i});
    }
    return c;
}

/* Returns which of the six files count as changed, one bit for each file. */
static unsigned changed(const struct monarch_catalog *c) {
    const uint64_t ids[] = {0, 1, 2, 3, 4, 5};
    uint8_t flags[6];
    unsigned all = 0;
    monarch_find_changed(m, e->control, c, 6, ids, flags);
    for (int i = 0; i < 6; i++)
        all |= (unsigned)flags[i] << i;
    return all;
}

/* A change of a file marks that file. A change of a tree marks all files of the sources on its
 * device. An unknown change marks all files. Afterwards `told` is 0, so that the process that
 * reported the change can continue. */
TEST(changes_mark_the_files_that_they_concern) {
    const struct monarch_change changes[] = {
        {.dev = 70, .ino = 103}, {.dev = 71, .ino = 104}, {.dev = 71, .ino = 9, .is_tree = 1}};
    const unsigned after[] = {8, 8 | 1 << 4, 8 | 1 << 4 | 1 << 1 | 1 << 2 | 1 << 5};
    const uint32_t renames[] = {0, 0, 2};
    make();
    struct monarch_catalog *c = two_sources();
    int fd = open("changes", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    uint64_t at = 0;
    monarch_take_changes(m, e->control, c, fd, &at); /* there is no change yet */
    for (int i = 0; i < 3; i++) {
        CHECK(write(fd, &changes[i], sizeof changes[i]) == sizeof changes[i]);
        SAME(changed(c), i ? after[i - 1] : 0);
        m->told = 5;
        monarch_take_changes(m, e->control, c, fd, &at);
        SAME(m->told, 0);
        SAME(at, (unsigned)(i + 1) * sizeof *changes);
        SAME(changed(c), after[i]);
        SAME(m->renames, renames[i]);
    }
    CHECK(write(fd, changes, 3) == 3); /* an incomplete change is not taken */
    m->told = 5;
    monarch_take_changes(m, e->control, c, fd, &at);
    SAME(at, 3 * sizeof *changes);
    SAME(changed(c), after[2]);
    m->told = MONARCH_CHANGE_UNKNOWN;
    monarch_take_changes(m, e->control, c, fd, &at);
    SAME(changed(c), 63);
    SAME(m->renames, 5);
    SAME(m->told, 0);
    close(fd);
    free(c);
    free_engine(e);
}

/* The daemon's loop sleeps only if its doorbell has not been rung since the loop last read it. It
 * sleeps for at most the given time. */
TEST(a_ring_before_the_sleep_is_not_missed) {
    make();
    monarch_ring_doorbell(m);
    SAME(m->doorbell, 1);
    SAME(monarch_wait_doorbell(m, 0, 100000000), 1);
    SAME(m->sleeping, 0);
    uint64_t began = monarch_now_ns();
    SAME(monarch_wait_doorbell(m, 1, 3), 1);
    uint64_t took = monarch_now_ns() - began;
    CHECK(took >= 3000000 && took < 900000000000);
    const int ms[] = {0, 1, 999, 1000, 61234};
    is_noted = 1;
    for (int i = 0; i < 5; i++) {
        SAME(monarch_wait_doorbell(m, 1, ms[i]), 1);
        SAME(nap.tv_sec * 1000000000 + nap.tv_nsec, ms[i] * 1000000LL);
        CHECK(nap.tv_nsec < 1000000000);
        SAME(naps, i + 1);
    }
    SAME(monarch_wait_doorbell(m, 0, 5), 1);
    SAME(naps, 5);
    free_engine(e);
}
