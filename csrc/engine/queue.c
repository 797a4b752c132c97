#include "engine/queue.h"

#include "copy/job.h"

void monarch_push(struct queue *q, struct job *job) {
    job->next = NULL;
    job->before = q->last;
    job->queue = q;
    *(q->last ? &q->last->next : &q->first) = job;
    q->last = job;
    q->length++;
}

void monarch_push_first(struct queue *q, struct job *job) {
    job->next = q->first;
    job->before = NULL;
    job->queue = q;
    *(q->first ? &q->first->before : &q->last) = job;
    q->first = job;
    q->length++;
}

void monarch_take_out(struct job *job) {
    struct queue *q = job->queue;
    *(job->before ? &job->before->next : &q->first) = job->next;
    *(job->next ? &job->next->before : &q->last) = job->before;
    job->queue = NULL;
    q->length--;
}

struct job *monarch_pop(struct queue *q) {
    struct job *job = q->first;
    if (job)
        monarch_take_out(job);
    return job;
}
