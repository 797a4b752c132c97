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
/* Removes the first order and returns it; returns NULL if the queue is empty. */
struct job *monarch_pop(struct queue *q);
/* Removes the order from its queue, at any position. */
void monarch_take_out(struct job *job);
