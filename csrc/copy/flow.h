/* How fast the sources and the peers are, and who is at them. */
#ifndef MONARCH_FLOW_H
#define MONARCH_FLOW_H

#include "copy/state.h"

#define MONARCH_ENDPOINTS (1 + MONARCH_MAX_PEERS)
#define MONARCH_ENDPOINT_OF_SOURCES 0
#define MONARCH_ENDPOINT_OF_PEER(number) (1 + (number))

struct endpoint {
    struct monarch_flow flow; /* atomic */
    uint32_t busy;            /* atomic: threads at it */
};

/* A thread at a place. */
struct visit {
    struct endpoint *endpoint;
    uint64_t since_ns;
    unsigned level;
};

struct visit monarch_visit(struct monarch_engine *e, unsigned place);
/* It has got so many bytes there. */
void monarch_leave(const struct visit *v, uint64_t bytes);
/* The time that it was there for says nothing of the place. */
void monarch_leave_unseen(const struct visit *v);
/* A file of one unit took so long at its source, to be opened and read. What most of the last files
 * took says whether the source is a fast one. */
void monarch_note_speed(struct monarch_engine *e, unsigned source, uint64_t ns);
/* Of a file that a program had just read, the kernel had some pages no more. What is true of most
 * of the last files says whether the mount keeps them. */
void monarch_note_pages(struct monarch_engine *e, unsigned source, int are_gone);

#endif
