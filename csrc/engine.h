/* Between the engine's threads (engine.c) and what one job does (job.c). */
#ifndef MONARCH_ENGINE_H
#define MONARCH_ENGINE_H

#include "native.h"

/* One read and one write move this much: long enough that a system call costs nothing, short
 * enough that the bytes are still in the second-level cache when they are hashed and written. */
#define MONARCH_CHUNK (1024 * 1024)

struct job {
    struct job *next;
    struct monarch_result result;
    int source_root, copies; /* descriptors of the directories */
    uint64_t expected_sum;
    struct monarch_entry entry; /* as it was when the order was given */
    char path[];
};

struct monarch_engine {
    uint64_t block_bytes;
    uint64_t bytes; /* atomic: read from sources */
    int stopping;   /* atomic */
};

/* Does the job and leaves its answer in job->result; `buffer` has MONARCH_CHUNK bytes. */
void monarch_do_job(struct monarch_engine *e, struct job *job, char *buffer);

#endif
