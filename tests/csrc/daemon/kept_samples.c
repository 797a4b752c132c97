/* Tests loaders/kept.c, which keeps samples in memory that several processes share. */
#include <errno.h>
#include <signal.h>
#include <stdint.h>

/* The code calls kill(pid, 0) to find out whether the process that was writing a sample still runs.
 * This is the errno of the call; 0: the call succeeds. */
static int kill_error;
static int64_t killed;
static int probe(int pid, int signal) {
    killed = signal == 0 ? pid : -1;
    errno = kill_error;
    return kill_error ? -1 : 0;
}
#define kill probe
#include "loaders/kept.c"
#undef kill

#include "checks.h"

#define SAMPLES 6
#define ROOM 20

static struct monarch_kept *kept;
static struct monarch_kept_sample *samples;
static void make(void) {
    uint64_t data = sizeof *kept + SAMPLES * sizeof *samples;
    kept = calloc(1, data + ROOM);
    kept->samples = SAMPLES;
    kept->data = data;
    kept->room = ROOM;
    samples = (struct monarch_kept_sample *)(kept + 1);
}

/* A stored sample is found, with its length and its bytes. A sample that was not stored is not
 * found. */
TEST(a_stored_sample_is_found) {
    make();
    uint64_t length = 99;
    SAME(monarch_kept_put(kept, 2, "abcde", 5), 0);
    SAME(monarch_kept_put(kept, 5, "xyz", 3), 0);
    SAME(monarch_kept_put(kept, 0, "", 0), 0);
    for (uint64_t i = 0; i < SAMPLES; i++) {
        int64_t at = monarch_kept_find(kept, i, &length);
        SAME(at >= 0, i == 2 || i == 5 || i == 0);
        if (i == 2)
            CHECK(length == 5 && memcmp((char *)kept + at, "abcde", 5) == 0);
        if (i == 5)
            CHECK(length == 3 && memcmp((char *)kept + at, "xyz", 3) == 0);
    }
    SAME(kept->used, 8);
    free(kept);
}

/* A sample is stored once: neither a second call nor another writer changes it. */
TEST(a_sample_is_stored_once) {
    make();
    uint64_t length;
    SAME(monarch_kept_put(kept, 1, "first", 5), 0);
    SAME(monarch_kept_put(kept, 1, "other", 5), 0);
    CHECK(memcmp((char *)kept + monarch_kept_find(kept, 1, &length), "first", 5) == 0);
    SAME(kept->used, 5);
    free(kept);
}

/* While a process writes a sample, the sample counts as missing, and no other process writes it. If
 * the writing process was killed, another process stores the sample. If kill fails with EPERM, the
 * process still runs: it belongs to another user. */
TEST(the_sample_of_a_killed_process_is_stored_by_another) {
    const struct { int error, is_stored; } cases[] = {{0, 0}, {EPERM, 0}, {ESRCH, 1}};
    for (int i = 0; i < 3; i++) {
        make();
        uint64_t length, writing = 4711ULL << 8 | MONARCH_KEPT_WRITING;
        samples[3].state = writing;
        kill_error = cases[i].error;
        killed = 0;
        SAME(monarch_kept_find(kept, 3, &length), -1);
        SAME(monarch_kept_put(kept, 3, "abc", 3), 0);
        SAME(killed, 4711);
        SAME(samples[3].state, cases[i].is_stored ? MONARCH_KEPT_WHOLE : writing);
        SAME(kept->used, cases[i].is_stored ? 3 : 0);
        free(kept);
    }
    make();
    killed = 0;
    samples[3].state = 4711ULL << 8 | MONARCH_KEPT_NO_ROOM;
    SAME(monarch_kept_put(kept, 3, "abc", 3), 0);
    CHECK(!killed && !kept->used);
    free(kept);
}

/* If a sample does not fit, no later call stores it either. monarch_kept_put returns 1 only for the
 * first sample that does not fit. Smaller samples are still stored, up to the last byte of the
 * memory. */
TEST(the_first_sample_without_room_is_told) {
    const char bytes[ROOM + 1] = "twenty-one bytes long";
    make();
    SAME(monarch_kept_put(kept, 0, bytes, ROOM + 1), 1);
    SAME(samples[0].state, MONARCH_KEPT_NO_ROOM);
    SAME(monarch_kept_put(kept, 1, bytes, ROOM - 1), 0);
    SAME(monarch_kept_put(kept, 2, bytes, 2), 0); /* not told again */
    SAME(samples[2].state, MONARCH_KEPT_NO_ROOM);
    SAME(monarch_kept_put(kept, 3, bytes, 1), 0);
    SAME(samples[3].state, MONARCH_KEPT_WHOLE);
    SAME(kept->used, ROOM);
    SAME(monarch_kept_put(kept, 0, bytes, 0), 0);
    SAME(samples[0].state, MONARCH_KEPT_NO_ROOM);
    SAME(kept->is_full, 1);
    free(kept);
}

/* A batch copies its samples from the shared memory. A sample is missing if it has no place (-1),
 * is not stored yet, or is stored with another length. The bytes of a missing sample in the batch
 * stay as they are. */
TEST(a_batch_takes_what_is_there) {
    make();
    monarch_kept_put(kept, 2, "abcde", 5);
    monarch_kept_put(kept, 4, "xy", 2);
    const int64_t places[] = {4, -1, 2, 2, 1, 2}, starts[] = {0, 2, 4, 9, 14, 20},
                  lengths[] = {2, 2, 5, 4, 5, 5};
    char out[26] = "-------------------------";
    uint8_t missing[6];
    SAME(monarch_kept_take(kept, places, 6, out, starts, lengths, missing), 3);
    CHECK(strcmp(out, "xy--abcde-----------abcde") == 0);
    const uint8_t right[] = {0, 1, 0, 1, 1, 0};
    CHECK(memcmp(missing, right, sizeof right) == 0);
    SAME(monarch_kept_take(kept, places, 0, out, starts, lengths, missing), 0);
    monarch_kept_count(kept, 3, 4);
    monarch_kept_count(kept, 10, 20);
    CHECK(kept->from_memory == 13 && kept->from_source == 24);
    free(kept);
}
