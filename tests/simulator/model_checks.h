/* The checks and the random numbers that the models of the simulator's parts use. Each run of a
 * model sets `state` to the run's seed. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(it)                                                                   \
    do {                                                                            \
        if (!(it)) {                                                                \
            fprintf(stderr, "%s:%d: run %llu: %s\n", __FILE__, __LINE__, run, #it); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

static unsigned long long run;
static uint64_t state;
static uint32_t below(uint32_t n) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(state >> 33) % n;
}
