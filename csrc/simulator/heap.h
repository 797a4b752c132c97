/* A heap of events, sorted by time. An event belongs to an asker: a thread, or anything else that
 * waits for events. Events with the same time are sorted by their askers' numbers, so that two runs
 * give bitwise identical results. */
#pragma once

#include <stdint.h>

struct event {
    double at; /* [s] */
    uint32_t who;
};

/* An asker (`who`) has at most one event at a time, so the heap has room for one event per
 * asker. */
struct heap {
    struct event *event;
    uint32_t n;
};

static inline int is_before(struct event a, struct event b) {
    return a.at < b.at || (a.at == b.at && a.who < b.who);
}

static inline void heap_push(struct heap *h, double at, uint32_t who) {
    struct event e = {at, who};
    uint32_t i = h->n++;
    for (; i && is_before(e, h->event[(i - 1) / 2]); i = (i - 1) / 2)
        h->event[i] = h->event[(i - 1) / 2];
    h->event[i] = e;
}

static inline struct event heap_pop(struct heap *h) {
    struct event first = h->event[0], last = h->event[--h->n];
    uint32_t i = 0;
    for (uint32_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && is_before(h->event[child + 1], h->event[child]))
            child++;
        if (!is_before(h->event[child], last))
            break;
        h->event[i] = h->event[child];
    }
    h->event[i] = last;
    return first;
}

/* Removes the event of `who`, which must exist. */
static inline void heap_drop(struct heap *h, uint32_t who) {
    uint32_t i = 0;
    while (h->event[i].who != who)
        i++;
    for (; i; i = (i - 1) / 2)
        h->event[i] = h->event[(i - 1) / 2];
    /* The loop has moved all ancestors of the event one place down, over the event. Now the heap
     * has its first event twice, and one of the two is removed. */
    heap_pop(h);
}
