/* Orders, one behind the other. One is in no more than one queue. */
#ifndef MONARCH_QUEUE_H
#define MONARCH_QUEUE_H

#include <stdint.h>

struct job;

struct queue {
    struct job *first, *last;
    uint64_t length;
};

void monarch_push(struct queue *q, struct job *job);
void monarch_push_first(struct queue *q, struct job *job);
/* NULL for none. */
struct job *monarch_pop(struct queue *q);
/* Out of the queue that it is in, wherever. */
void monarch_take_out(struct job *job);

#endif
