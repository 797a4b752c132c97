/* Threads store and read samples in the same memory at the same time, under sanitizers. Exits with
 * 0 if each stored sample is complete, no sample is stored twice, and all stored samples together
 * fit into the memory. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loaders/loaders.h"

enum { THREADS = 4, SAMPLES = 600, LARGEST = 500 };

/* How often each thread visits a sample, on average. */
static int turns;

static struct monarch_kept *kept;

static uint64_t length_of(uint64_t sample) { return sample * 7919 % LARGEST; }

static void fail(const char *what, uint64_t sample) {
    fprintf(stderr, "%s of sample %llu\n", what, (unsigned long long)sample);
    exit(1);
}

static void check(uint64_t sample, const char *bytes) {
    for (uint64_t i = 0; i < length_of(sample); i++)
        if (bytes[i] != (char)(sample + i))
            fail("bytes", sample);
}

static void put(uint64_t sample) {
    char bytes[LARGEST];
    for (uint64_t i = 0; i < length_of(sample); i++)
        bytes[i] = (char)(sample + i);
    monarch_kept_put(kept, sample, bytes, length_of(sample));
}

static void take(uint64_t first) {
    int64_t places[3] = {(int64_t)first, -1, (int64_t)((first + 1) % SAMPLES)};
    int64_t starts[3] = {0, LARGEST, LARGEST};
    int64_t lengths[3] = {(int64_t)length_of(first), 0, (int64_t)length_of((first + 1) % SAMPLES)};
    uint8_t missing[3];
    char out[2 * LARGEST];
    uint64_t lacking = monarch_kept_take(kept, places, 3, out, starts, lengths, missing);
    if (lacking != (uint64_t)missing[0] + missing[1] + missing[2] || !missing[1])
        fail("what is missing", first);
    for (int i = 0; i < 3; i += 2)
        if (!missing[i])
            check((uint64_t)places[i], out + starts[i]);
}

static void *work(void *seed) {
    unsigned state = (unsigned)(uintptr_t)seed;
    for (int i = 0; i < turns * SAMPLES; i++) {
        uint64_t sample = (uint64_t)rand_r(&state) % SAMPLES, length;
        if (i % 3 == 0)
            put(sample);
        take(sample);
        int64_t at = monarch_kept_find(kept, sample, &length);
        if (at >= 0 && length != length_of(sample))
            fail("length", sample);
        if (at >= 0)
            check(sample, (char *)kept + at);
        monarch_kept_count(kept, at >= 0, at < 0);
    }
    return NULL;
}

static void check_room(void) {
    uint64_t used = 0, whole = 0;
    struct monarch_kept_sample *samples = (struct monarch_kept_sample *)(kept + 1);
    for (uint64_t i = 0; i < SAMPLES; i++) {
        if (samples[i].state != MONARCH_KEPT_WHOLE && samples[i].state != MONARCH_KEPT_NO_ROOM)
            fail("state", i);
        whole += samples[i].state == MONARCH_KEPT_WHOLE;
        if (samples[i].state == MONARCH_KEPT_WHOLE)
            used += samples[i].length;
    }
    if (used != kept->used || used > kept->room || whole == 0 || whole == SAMPLES)
        fail("room", whole);
    if (kept->from_memory + kept->from_source != (uint64_t)THREADS * (uint64_t)turns * SAMPLES)
        fail("counts", whole);
}

int main(int argc, char **argv) {
    if (argc != 2 || (turns = atoi(argv[1])) < 1)
        fail("no number of turns", 0);
    uint64_t data = sizeof *kept + SAMPLES * sizeof(struct monarch_kept_sample);
    uint64_t room = SAMPLES * LARGEST / 3;
    pthread_t threads[THREADS];
    kept = calloc(1, data + room);
    *kept = (struct monarch_kept){.samples = SAMPLES, .data = data, .room = room};
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    check_room();
    free(kept);
    return 0;
}
