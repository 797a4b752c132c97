/* Trials of a copy that is being filled: reads of its units, and reuse of its slot for another
 * copy. */
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "acts.h"
#include "site.h"
#include "trials.h"

static int held_fd;
static unsigned first_copy, next_copy;

static void reset_filling(void) {
    note_descriptors();
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

/* The fill of LARGE fails after its first unit. Its slot is reused at once for a fill of OTHER. All
 * units of this second fill are marked as done from the start. */
static void fail_and_fill_another(void) {
    fill_unit(LARGE, 0, first_copy, 0);
    __atomic_store_n(&site.fills->fill[0].failed, 1, __ATOMIC_SEQ_CST);
    answer();
    set_word(LARGE, MONARCH_ABSENT, 0);
    end_fill(0);
    begin_fill(OTHER, 0, next_copy);
    __atomic_store_n(&site.fills->fill[0].done[0], 7, __ATOMIC_SEQ_CST);
    step();
    answer();
    publish_copy(OTHER, next_copy);
    end_fill(0);
    drop_copy(first_copy);
}

const struct trial filling_trials[] = {
    {"filling", reset_filling, {read_large, fill_all}, check_descriptors},
    {"failing", reset_filling, {read_large, fail_and_fill_another}, check_descriptors},
    {0},
};
