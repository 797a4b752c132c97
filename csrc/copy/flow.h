/* Measures how fast the sources and the peers are, and counts the threads that use each of them. */
#pragma once

#include "copy/state.h"

#define MONARCH_ENDPOINTS (1 + MONARCH_MAX_PEERS)
#define MONARCH_ENDPOINT_OF_SOURCES 0
#define MONARCH_ENDPOINT_OF_PEER(number) (1 + (number))

struct endpoint {
    struct monarch_flow flow; /* atomic */
    uint32_t busy;            /* atomic: number of threads that use the endpoint now */
};

/* One thread's use of an endpoint (the sources or a peer), from monarch_visit to monarch_leave. */
struct visit {
    struct endpoint *endpoint;
    uint64_t since_ns;
    unsigned level;
};

struct visit monarch_visit(struct monarch_engine *e, unsigned place);
/* Ends a visit in which the thread has received `bytes` bytes. */
void monarch_leave(const struct visit *v, uint64_t bytes);
/* Ends a visit without adding its duration to the endpoint's measured flow. */
void monarch_leave_unseen(const struct visit *v);
