/* Samples that the processes of one node keep in shared memory.
 *
 * The first process that reads a sample from its source stores the sample there. Readers take no
 * lock and never wait. While a process writes a sample, the sample is missing for all other
 * processes. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "loaders/loaders.h"

#define WRITER_SHIFT 8
#define STATE_MASK 0xff

static struct monarch_kept_sample *sample_at(struct monarch_kept *kept, uint64_t place) {
    return (struct monarch_kept_sample *)(kept + 1) + place;
}

int64_t monarch_kept_find(struct monarch_kept *kept, uint64_t place, uint64_t *length) {
    struct monarch_kept_sample *sample = sample_at(kept, place);
    if (__atomic_load_n(&sample->state, __ATOMIC_ACQUIRE) != MONARCH_KEPT_WHOLE)
        return -1;
    *length = sample->length;
    return (int64_t)(kept->data + sample->offset);
}

uint64_t monarch_kept_take(struct monarch_kept *kept, const int64_t *places, uint64_t n, char *out,
                           const int64_t *starts, const int64_t *lengths, uint8_t *missing) {
    uint64_t lacking = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t length = 0;
        int64_t at = places[i] < 0 ? -1 : monarch_kept_find(kept, (uint64_t)places[i], &length);
        if (length != (uint64_t)lengths[i])
            at = -1;
        missing[i] = at < 0;
        lacking += at < 0;
        if (at >= 0)
            memcpy(out + starts[i], (char *)kept + at, length);
    }
    return lacking;
}

/* Returns whether the process that was writing a sample has ended. */
static int is_abandoned(uint64_t state) {
    return (state & STATE_MASK) == MONARCH_KEPT_WRITING &&
           kill((pid_t)(state >> WRITER_SHIFT), 0) != 0 && errno == ESRCH;
}

/* Makes this process the only writer of the sample, and returns 1. Returns 0 if the sample is
 * stored already, if another process is writing it, or if an earlier call has found no room for
 * it. */
static int claim(struct monarch_kept_sample *sample) {
    uint64_t state = __atomic_load_n(&sample->state, __ATOMIC_RELAXED);
    uint64_t mine = (uint64_t)getpid() << WRITER_SHIFT | MONARCH_KEPT_WRITING;
    if (state != MONARCH_KEPT_EMPTY && !is_abandoned(state))
        return 0;
    return __atomic_compare_exchange_n(&sample->state, &state, mine, 0, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
}

/* Reserves room for a sample. Returns the offset of the room in the data, or -1 if too little room
 * is left. */
static int64_t take_room(struct monarch_kept *kept, uint64_t length) {
    uint64_t used = __atomic_load_n(&kept->used, __ATOMIC_RELAXED);
    do {
        if (length > kept->room - used)
            return -1;
    } while (!__atomic_compare_exchange_n(&kept->used, &used, used + length, 0, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    return (int64_t)used;
}

int monarch_kept_put(struct monarch_kept *kept, uint64_t place, const char *bytes,
                     uint64_t length) {
    struct monarch_kept_sample *sample = sample_at(kept, place);
    if (!claim(sample))
        return 0;
    int64_t offset = take_room(kept, length);
    uint64_t state = MONARCH_KEPT_NO_ROOM;
    if (offset >= 0) {
        memcpy((char *)kept + kept->data + offset, bytes, length);
        sample->offset = (uint64_t)offset;
        sample->length = length;
        state = MONARCH_KEPT_WHOLE;
    }
    __atomic_store_n(&sample->state, state, __ATOMIC_RELEASE);
    return offset < 0 && !__atomic_exchange_n(&kept->is_full, 1, __ATOMIC_RELAXED);
}

void monarch_kept_count(struct monarch_kept *kept, uint64_t from_memory, uint64_t from_source) {
    __atomic_fetch_add(&kept->from_memory, from_memory, __ATOMIC_RELAXED);
    __atomic_fetch_add(&kept->from_source, from_source, __ATOMIC_RELAXED);
}
