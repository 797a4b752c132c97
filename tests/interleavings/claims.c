/* Trials of claims: while a program reads a file at the source, an order to fill this file waits
 * (csrc/engine/schedule.c). */
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "acts.h"
#include "daemon.h"
#include "scheduler.h"
#include "trials.h"

/* CLAIM_NS: the time after which a claim expires [ns]. A claim may expire up to TICK_NS earlier. */
#define TICK_NS (1ULL << MONARCH_CLAIM_TICK)
#define CLAIM_NS (MONARCH_CLAIM_TICKS * TICK_NS)
/* LOOK_NS: interval [ns] at which the engine checks an order that waits for a reader (READER_NS in
 * csrc/engine/work.c). SOON_NS: once such a check finds that the reader's claim has ended, the
 * engine opens the file within this time [ns]. */
#define LOOK_NS 50000000ULL
#define SOON_NS 20000000ULL
/* A reader's pause [ns]. One pause is shorter than a claim lasts, two together are longer. */
#define PAUSE_NS (CLAIM_NS / 5 * 3)
#define REST_NS 400000000U
#define PLENTY (1ULL << 20)
#define PART_BYTES (MEDIUM_BYTES / 3)

static int held_fd, has_ended;
static uint64_t claimed_ns; /* time just before the claim was made or last renewed */
static uint64_t ended_ns;   /* time just after the reader ended its claim, or NEVER */
static uint64_t opened_ns;  /* time when the daemon opened the file at the source, or NEVER */

static int may_have_ended(void) { return has_ended || now_ns() - claimed_ns >= CLAIM_NS - TICK_NS; }

/* Called when the daemon opens a file of the source. Checks that the daemon does not open MEDIUM
 * while the program's claim of MEDIUM is certainly valid. */
static void expect_no_claim(const char *name) {
    if (strcmp(name, names[MEDIUM]) != 0)
        return;
    EXPECT(may_have_ended());
    opened_ns = now_ns();
}

/* The program has opened MEDIUM and so has claimed it. PAUSE_NS have passed since then. */
static void reset_claimed(void) {
    note_descriptors();
    has_ended = 0;
    ended_ns = opened_ns = NEVER;
    start_daemon();
    claimed_ns = now_ns();
    held_fd = open(path_of("source", names[MEDIUM]), O_RDONLY);
    EXPECT(held_fd >= 0);
    pass_time(PAUSE_NS);
    when_source_is_opened = expect_no_claim;
}

static void read_part(unsigned part) {
    static uint64_t got[PART_BYTES / 8];
    uint64_t before_ns = now_ns(), at = (uint64_t)part * PART_BYTES;
    EXPECT(pread(held_fd, got, PART_BYTES, (off_t)at) == PART_BYTES);
    version_of(MEDIUM, got, at, PART_BYTES);
    has_ended = may_have_ended(); /* the claim may have expired before this read renewed it */
    claimed_ns = before_ns;
}

/* Reads the whole file with a pause. Each read renews the claim, and the last read hands the
 * descriptor over. */
static void read_slowly(void) {
    read_part(0);
    sleep_on(&held_fd, now_ns() + PAUSE_NS, ANY_BIT);
    read_part(1);
    has_ended = 1;
    read_part(2);
    EXPECT(close(held_fd) == 0);
}

static void read_a_part(void) {
    read_part(0);
    has_ended = 1;
    EXPECT(close(held_fd) == 0);
    ended_ns = now_ns();
}

/* Reads a part and then acts like a process that is killed: the descriptor is closed without the
 * library, so the claim is not given up. */
static void read_and_die(void) {
    read_part(0);
    syscall(SYS_close, held_fd);
}

/* Returns whether monarch_find_absent() finds the file. The daemon uses monarch_find_absent() to
 * look for files that it may fill ahead. */
static int is_found_absent(unsigned file) {
    uint64_t at = 0, ids[FILES];
    uint64_t n =
        monarch_find_absent(site.catalog, site.clients, 0, "", 0, 1, &at, FILES, ids, FILES);
    for (uint64_t i = 0; i < n; i++)
        if (ids[i] == site.ids[file])
            return 1;
    return 0;
}

/* Orders fills of MEDIUM and OTHER. The order for MEDIUM waits until the program's claim of MEDIUM
 * ends. The fill of OTHER does not wait. */
static void fill_ahead(void) {
    EXPECT(!is_found_absent(MEDIUM) || may_have_ended());
    order_ahead(MEDIUM);
    order_ahead(OTHER);
    end_daemon(PLENTY, REST_NS);
}

static void check_filled(void) {
    EXPECT(MONARCH_WORD_STATE(entry_of(MEDIUM)->word) == MONARCH_PRESENT);
    EXPECT(MONARCH_WORD_STATE(entry_of(OTHER)->word) == MONARCH_PRESENT);
    check_descriptors();
}

/* The copy must have been made from the reader's descriptor, so the daemon must not have opened the
 * file. The exception: an interrupt may have held the reader up until its claim expired. */
static void check_one_open(void) {
    EXPECT(opened_ns == NEVER || held_up_ns());
    check_filled();
}

static void check_soon(void) {
    uint64_t end_ns = ended_ns == NEVER ? claimed_ns + CLAIM_NS : ended_ns;
    EXPECT(opened_ns < end_ns + LOOK_NS + SOON_NS + held_up_ns());
    check_filled();
}

const struct trial claim_trials[] = {
    {"claimed", reset_claimed, {read_slowly, fill_ahead}, check_one_open},
    {"released", reset_claimed, {read_a_part, fill_ahead}, check_soon},
    {"killed", reset_claimed, {read_and_die, fill_ahead}, check_soon},
    {0},
};
