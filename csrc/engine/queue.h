/* Queues of orders. An order is in at most one queue. */
#pragma once

#include <stdint.h>

struct job;

struct queue {
    struct job *first, *last;
    uint64_t length;
};

void monarch_push(struct queue *q, struct job *job);
void monarch_push_first(struct queue *q, struct job *job);
/* Takes the first order out; NULL if the queue is empty. */
struct job *monarch_pop(struct queue *q);
/* Takes the order out of its queue, from any position. */
void monarch_take_out(struct job *job);
