#include <sched.h>
#include <sys/resource.h>

#include "shared/clock.h"
#include "short_io.h"

/* Replacements for the clock and for the count of a thread's sleeps. Each read advances the clock
 * by `takes_ns` and the count by `naps`. */
static uint64_t time_ns = 1, takes_ns;
static long slept, naps;
static uint64_t told_ns(void) { return __atomic_load_n(&time_ns, __ATOMIC_RELAXED); }
static int told_usage(int who, struct rusage *usage) {
    usage->ru_nvcsw = __atomic_load_n(&slept, __ATOMIC_RELAXED);
    return who == RUSAGE_THREAD ? 0 : -1;
}
static ssize_t slow_pread(int fd, void *to, size_t n, off_t at) {
    __atomic_fetch_add(&time_ns, takes_ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&slept, naps, __ATOMIC_RELAXED);
    return short_pread(fd, to, n, at);
}
#define monarch_now_ns told_ns
#define getrusage told_usage
#undef pread
#define pread slow_pread
#include "loaders/reads.c"

#include "checks.h"

#define READS 40
#define BYTES 1000

static int32_t descriptors[READS];
static int64_t offsets[READS], lengths[READS];
static char memory[READS][BYTES + 1];
static char *out[READS];
static int file;

static void make(void) {
    file = make_file("file", READS * BYTES, 7);
    memset(memory, 0, sizeof memory);
    for (int i = 0; i < READS; i++) {
        descriptors[i] = file;
        offsets[i] = i * BYTES + i % 3;
        lengths[i] = BYTES - i % 7;
        if (offsets[i] + lengths[i] > READS * BYTES)
            lengths[i] = READS * BYTES - offsets[i];
        out[i] = memory[i];
    }
    takes_ns = 1;
    naps = 0;
    was_fast = 0;
}

static void check_all(void) {
    for (int i = 0; i < READS; i++) {
        check_bytes(7, 0, (uint64_t)offsets[i], memory[i], (uint64_t)lengths[i]);
        SAME(memory[i][lengths[i]], 0);
    }
}

static uint64_t read_them(int in_flight, int *error) {
    return monarch_read_all(descriptors, offsets, lengths, out, READS, in_flight, error);
}

/* All ranges are read, by one thread or by many, however few bytes each system call returns. */
TEST(all_ranges_are_read) {
    const int width[] = {1, 2, 7, READS + 9, MONARCH_READS_IN_FLIGHT + 5};
    int error;
    make();
    for (int i = 0; i < 5; i++)
        for (int is_short = 0; is_short < (i ? 1 : 2); is_short++) {
            memset(memory, 0, sizeof memory);
            most_moved = is_short ? 77 : 0;
            SAME(read_them(width[i], &error), READS);
            most_moved = 0;
            SAME(error, 0);
            check_all();
            CHECK(threads < READS && threads <= MONARCH_READS_IN_FLIGHT && idle <= threads);
            CHECK(!calls);
        }
    close(file);
}

/* Waits until all threads are idle again. */
static void wait_until_idle(void) {
    for (int is_idle = 0; !is_idle;) {
        pthread_mutex_lock(&lock);
        is_idle = idle == threads;
        pthread_mutex_unlock(&lock);
        sched_yield();
    }
}

/* A call makes its reads in at most as many threads as the caller allows, and in no more threads
 * than it has reads. The calling thread is one of them. The other threads are started if they do
 * not exist yet, and stay for later calls. */
TEST(threads_are_started_as_they_are_needed) {
    const struct {
        uint64_t n;
        int width, threads;
    } cases[] = {{READS, 1, 0}, {READS, 2, 1}, {READS, 4, 3}, {READS, 3, 3},
                 {2, 30, 3},    {0, 9, 3},     {READS, 6, 5}, {READS, 1, 5}};
    int error;
    make();
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        was_fast = 0;
        SAME(monarch_read_all(descriptors, offsets, lengths, out, cases[i].n, cases[i].width,
                              &error),
             cases[i].n);
        SAME(threads, cases[i].threads);
        CHECK(!calls);
        wait_until_idle();
    }
    close(file);
}

/* If several reads fail, the call reports the failure of the read that comes first in the list,
 * with its errno. The errno is 0 if the file ended too early. */
TEST(the_first_failure_is_told) {
    for (int width = 1; width < 9; width += 7)
        for (int way = 0; way < 3; way++) {
            int error = 99;
            make();
            descriptors[20] = way ? -1 : file;
            descriptors[9] = way == 2 ? -1 : file;
            lengths[31] = READS * BYTES;
            uint64_t failed = read_them(width, &error);
            SAME(failed, way == 0 ? 31 : way == 1 ? 20 : 9);
            SAME(error, way == 0 ? 0 : EBADF);
            close(file);
            unlink("file");
        }
}

/* If several reads of a call fail, the call's error is that of the read that comes first in the
 * list. This holds even if a read that comes later in the list fails earlier. */
TEST(an_earlier_failure_replaces_a_later_one) {
    struct call c = {.n = 10, .failed = 10};
    fail(&c, 5, EIO);
    CHECK(c.failed == 5 && c.error == EIO && c.next == 10);
    fail(&c, 7, EBADF);
    CHECK(c.failed == 5 && c.error == EIO);
    fail(&c, 5, EBADF);
    SAME(c.error, EIO);
    fail(&c, 2, -1);
    CHECK(c.failed == 2 && c.error == 0);
}

/* A read is slow if both conditions hold: it takes more than SLOW_NS plus 1 ns per byte, and its
 * thread slept during the read. */
TEST(a_read_is_slow_if_it_waited) {
    make();
    for (int i = 0; i < 4; i++) {
        struct call c = {.descriptors = descriptors,
                         .offsets = offsets,
                         .lengths = lengths,
                         .out = out,
                         .n = READS,
                         .failed = READS};
        naps = i % 2;
        takes_ns = SLOW_NS + BYTES + (i > 1);
        for (int k = 0; k < READS; k++)
            lengths[k] = BYTES - (k == READS - 1 ? 100 : 0);
        work(&c, 0);
        /* i == 1: the last read is shorter, so the same time makes it slow */
        SAME(c.slow, i == 3 ? READS : i == 1 ? 1 : 0);
        CHECK(c.failed == READS && c.next > READS);
        c.next = c.slow = 0;
        work(&c, 1);
        SAME(c.slow, i % 2);
        SAME(c.next, i == 3 ? 1 : i == 1 ? READS : READS + 1);
    }
    close(file);
}

/* If fewer than a quarter of a call's reads were slow, the next call begins without other threads.
 * It gets other threads only after one of its own reads was slow. */
TEST(a_fast_source_is_read_alone) {
    int error;
    make();
    read_them(4, &error);
    SAME(was_fast, 1);
    SAME(threads, 3);
    forget(); /* as a forked child does */
    SAME(threads, 0);
    read_them(4, &error);
    CHECK(threads == 0 && was_fast);
    naps = 1;
    takes_ns = 10 * SLOW_NS;
    read_them(4, &error);
    CHECK(threads == 3 && !was_fast);
    check_all();
    close(file);
}

/* Whichever call leaves the list, the others stay in it. Removing a call that has already left has
 * no effect. */
TEST(calls_leave_the_list_in_any_order) {
    struct call a = {0}, b = {.after = &a}, c = {.after = &b};
    calls = &c;
    unlink_call(&b);
    CHECK(calls == &c && c.after == &a);
    unlink_call(&b);
    unlink_call(&a);
    CHECK(calls == &c && !c.after);
    unlink_call(&c);
    CHECK(!calls);
}
