/* Trials of descriptors that a program has handed over. They wait in the daemon's table
 * (csrc/handover/kept.c) for an order to fill their file. */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "acts.h"
#include "daemon.h"
#include "scheduler.h"
#include "trials.h"

/* the longest time [ns] for which flock waits for the daemon to close its descriptor of the file */
#define RECALL_NS 50000000ULL
#define REST_NS 10000000U
#define PLENTY (1ULL << 20)
#define NOTHING 0
/* The daemon's table may contain one descriptor from a program for every FOR_ONE descriptors that
 * the daemon may have open. */
#define FOR_ONE 4

static int held_fd, other_fd, is_done;

static void reset_waiting(void) {
    note_descriptors();
    is_done = 0;
    start_daemon();
    held_fd = open(path_of("source", names[SMALL]), O_RDONLY);
    EXPECT(held_fd >= 0);
}

/* Like reset_waiting, for two threads that read the same file. A file has only one claim, so the
 * daemon may have only one descriptor of this file. */
static void reset_shared(void) {
    most_handed = 1;
    reset_waiting();
}

static void reset_limit(void) {
    most_descriptors = FOR_ONE;
    reset_waiting();
    other_fd = open(path_of("source", names[OTHER]), O_RDONLY);
    EXPECT(other_fd >= 0);
}

static void read_all(int fd, unsigned file) {
    uint64_t got[SMALL_BYTES / 8];
    EXPECT(read(fd, got, sizeof got) == sizeof got);
    version_of(file, got, 0, sizeof got);
}

/* flock() must return within RECALL_NS, not counting the time for which interrupts held threads up.
 * If flock() took less than RECALL_NS, the daemon has closed its descriptor of the open file. In
 * this case, the lock must end when the program closes its own descriptor. */
static void lock_and_close(int fd, unsigned file) {
    uint64_t began_ns = now_ns();
    EXPECT(flock(fd, LOCK_EX) == 0);
    uint64_t took_ns = now_ns() - began_ns;
    EXPECT(took_ns < RECALL_NS + held_up_ns());
    EXPECT(close(fd) == 0);
    int again = raw_open(path_of("source", names[file]), O_RDONLY);
    EXPECT(syscall(SYS_flock, again, LOCK_EX | LOCK_NB) == 0 || took_ns >= RECALL_NS);
    syscall(SYS_close, again);
}

static void end_program(void) {
    is_done = 1;
    wake(&is_done, 1, ANY_BIT);
    step();
}

static void read_and_lock(void) {
    read_all(held_fd, SMALL);
    lock_and_close(held_fd, SMALL);
    end_program();
}

/* Reads the file, and locks it at about the time when the daemon first grants room. */
static void read_and_lock_later(void) {
    read_all(held_fd, SMALL);
    sleep_on(&held_fd, now_ns() + REST_NS, ANY_BIT);
    lock_and_close(held_fd, SMALL);
    end_program();
}

static void read_and_close(void) {
    read_all(held_fd, SMALL);
    EXPECT(close(held_fd) == 0);
    end_program();
}

static void read_both_and_lock(void) {
    read_all(held_fd, SMALL);
    read_all(other_fd, OTHER);
    sleep_on(&other_fd, now_ns() + 2 * REST_NS, ANY_BIT);
    lock_and_close(other_fd, OTHER);
    lock_and_close(held_fd, SMALL);
    end_program();
}

/* The second thread that reads SMALL. The file still has only one claim. */
static void open_and_read(void) {
    int fd = open(path_of("source", names[SMALL]), O_RDONLY);
    EXPECT(fd >= 0);
    read_all(fd, SMALL);
    EXPECT(close(fd) == 0);
}

/* Pauses, and then runs the daemon's loop. When the pause ends, the descriptors that programs have
 * handed to the daemon must fit into its table. They need not fit if an interrupt has held up a
 * thread, for example the one that closes descriptors. */
static void run_daemon(uint64_t granted_bytes) {
    sleep_on(&held_fd, now_ns() + REST_NS, ANY_BIT);
    EXPECT(handed_descriptors() <= most_descriptors / FOR_ONE || held_up_ns());
    while (!is_done)
        run_iteration(granted_bytes, REST_NS);
    end_daemon(granted_bytes, REST_NS);
}

/* The daemon grants the engine enough room for all files. */
static void grant_room(void) { run_daemon(PLENTY); }
/* The daemon grants the engine no room. So the engine cannot order the fill, and the daemon's loop
 * must order it. */
static void order_itself(void) { run_daemon(NOTHING); }

/* The daemon's loop is busy until the program has ended; only then does it grant room. */
static void grant_late(void) {
    if (!is_done)
        sleep_on(&is_done, NEVER, ANY_BIT);
    end_daemon(PLENTY, REST_NS);
}

/* A file that was read to its end must have a copy after the run. */
static void check_waiting(void) {
    EXPECT(MONARCH_WORD_STATE(entry_of(SMALL)->word) == MONARCH_PRESENT);
    check_descriptors();
}

/* The copy must have been made from the program's descriptor, so the daemon must not have opened
 * the file at the source. An open is accepted only if an interrupt has held a thread up. */
static void check_one_open(void) {
    EXPECT(!source_opens() || held_up_ns());
    check_waiting();
}

static void check_both(void) {
    EXPECT(MONARCH_WORD_STATE(entry_of(OTHER)->word) == MONARCH_PRESENT);
    check_waiting();
}

const struct trial waiting_trials[] = {
    {"recalled", reset_waiting, {read_and_lock_later, grant_late}, check_waiting},
    {"granted", reset_waiting, {read_and_lock_later, grant_room}, check_waiting},
    {"ordered", reset_waiting, {read_and_close, order_itself}, check_one_open},
    {"limit", reset_limit, {read_both_and_lock, grant_room}, check_both},
    {"shared", reset_shared, {read_and_lock, open_and_read, grant_room}, check_waiting},
    {0},
};
