/* Deals the samples of an epoch, step by step: first to the nodes, and then to the ranks of each
 * node. As many samples as possible go to a node that holds them. A node has one place for each
 * sample that it can take. The search for augmenting paths matches as many samples as possible with
 * places. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

/* The state while the samples of one step are dealt. Each array has an element for each node, or
 * for each sample of the step. Arrays represent a sample by its index in the step. The samples of a
 * node form a linked list. */
struct step {
    const struct monarch_deal *deal;
    const int32_t *samples;
    int32_t count;
    int32_t *node;          /* for each sample: its node; -1: no node yet */
    int32_t *next, *before; /* for each sample: its neighbors in its node's list; -1: none */
    int32_t *first;         /* for each node: head of its list */
    /* for each node. room: maximum number of samples that the node can take; taken: number of
     * samples that the node has got because it holds them */
    int32_t *room, *taken;
    /* for each node. share: number of samples that the node takes but must load, because it does
     * not hold them; least: minimum number of all samples of the node */
    int32_t *share, *least;
    /* State of a search for a free place (augment). moved: for each node, the sample that would
     * move to it; queue: the nodes reached so far, the earliest first. */
    int32_t *moved, *queue;
    /* for each node. seen: the current search has reached it; is_dead: an earlier search has shown
     * that no free place can be reached from it */
    uint8_t *seen, *is_dead;
    /* for each node: the position in `by_node` for the next of those samples that the node holds */
    int32_t *cursor;
    /* the step's samples, grouped by node; a node's group begins with the samples that it must
     * load */
    int32_t *by_node;
};

static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

static const int32_t *holders_of(const struct step *s, int32_t i) {
    return s->deal->holders + (uint64_t)s->samples[i] * s->deal->width;
}

static void link_to(struct step *s, int32_t i, int32_t node) {
    s->node[i] = node;
    s->before[i] = -1;
    s->next[i] = s->first[node];
    if (s->next[i] >= 0)
        s->before[s->next[i]] = i;
    s->first[node] = i;
}

static void unlink_from(struct step *s, int32_t i) {
    if (s->before[i] >= 0)
        s->next[s->before[i]] = s->next[i];
    else
        s->first[s->node[i]] = s->next[i];
    if (s->next[i] >= 0)
        s->before[s->next[i]] = s->before[i];
    s->node[i] = -1;
}

/* Chooses a node for the sample among its holders, the nodes that hold it. If the first holder (the
 * sample's owner) has a free place, returns that node. Otherwise returns the holder with the most
 * free places, or -1 if no holder has any. */
static int32_t freest(const struct step *s, int32_t i) {
    const int32_t *holders = holders_of(s, i);
    int32_t best = -1, most = 0;
    for (uint32_t k = 0; k < s->deal->width; k++) {
        int32_t node = holders[k];
        if (node >= 0 && s->room[node] - s->taken[node] > most) {
            if (k == 0)
                return node;
            most = s->room[node] - s->taken[node];
            best = node;
        }
    }
    return best;
}

/* Adds the nodes that hold sample `i` to the search. Returns the first of these nodes that has a
 * free place, or -1. */
static int32_t reach(struct step *s, int32_t i, int32_t *tail) {
    const int32_t *holders = holders_of(s, i);
    for (uint32_t k = 0; k < s->deal->width; k++) {
        int32_t node = holders[k];
        if (node < 0 || s->seen[node] || s->is_dead[node])
            continue;
        s->seen[node] = 1;
        s->moved[node] = i;
        s->queue[(*tail)++] = node;
        if (s->taken[node] < s->room[node])
            return node;
    }
    return -1;
}

/* Finds a place for sample `i` when all its holders are full: moves other samples to other nodes
 * that hold them. If no such moves exist, sample `i` gets no place. */
static void augment(struct step *s, int32_t i) {
    int32_t head = 0, tail = 0, free_node = reach(s, i, &tail);
    while (free_node < 0 && head < tail) {
        int32_t node = s->queue[head++];
        for (int32_t j = s->first[node]; j >= 0 && free_node < 0; j = s->next[j])
            free_node = reach(s, j, &tail);
    }
    for (int32_t k = 0; k < tail; k++) {
        s->seen[s->queue[k]] = 0;
        s->is_dead[s->queue[k]] = free_node < 0;
    }
    if (free_node < 0)
        return;
    s->taken[free_node]++;
    for (int32_t node = free_node;;) {
        int32_t j = s->moved[node], left = s->node[j];
        if (left >= 0)
            unlink_from(s, j);
        link_to(s, j, node);
        if (j == i)
            return;
        node = left;
    }
}

/* Assigns as many samples as possible to nodes that hold them. */
static void match(struct step *s) {
    uint32_t nodes = s->deal->nodes;
    for (uint32_t n = 0; n < nodes; n++)
        s->first[n] = -1;
    memset(s->taken, 0, nodes * sizeof *s->taken);
    memset(s->is_dead, 0, nodes);
    for (int32_t i = 0; i < s->count; i++) {
        int32_t node = freest(s, i);
        s->node[i] = -1;
        if (node >= 0) {
            link_to(s, i, node);
            s->taken[node]++;
        }
    }
    if (s->deal->width > 1)
        for (int32_t i = 0; i < s->count; i++)
            if (s->node[i] < 0)
                augment(s, i);
}

/* Takes samples away from nodes, until the waiting samples (samples without a node) can bring every
 * node up to its minimum (s->least). Takes each sample from the node that exceeds its minimum the
 * most. waiting: the number of waiting samples. Returns the new number. */
static int32_t give_up(struct step *s, int32_t waiting) {
    uint32_t nodes = s->deal->nodes;
    int32_t needed = 0;
    for (uint32_t n = 0; n < nodes; n++)
        needed += larger(0, s->least[n] - s->taken[n]);
    for (; waiting < needed; waiting++) {
        uint32_t richest = 0;
        for (uint32_t n = 1; n < nodes; n++)
            if (s->taken[n] - s->least[n] > s->taken[richest] - s->least[richest])
                richest = n;
        s->taken[richest]--;
        unlink_from(s, s->first[richest]);
    }
    return waiting;
}

static int32_t share_at(const struct step *s, uint32_t n, int32_t level) {
    int32_t need = larger(0, s->least[n] - s->taken[n]);
    return smaller(larger(level, need), s->room[n] - s->taken[n]);
}

static int64_t shares_at(const struct step *s, int32_t level) {
    int64_t sum = 0;
    for (uint32_t n = 0; n < s->deal->nodes; n++)
        sum += share_at(s, n, level);
    return sum;
}

/* Sets s->share: how many of the `waiting` samples, which have no node yet, each node gets. All
 * nodes get the same number, with two exceptions. A node gets more if it would otherwise have fewer
 * than s->least samples in all. A node gets fewer if it lacks room. Left-over samples go, one by
 * one, to the nodes with the smallest s->taken. */
static void fill_up(struct step *s, int32_t waiting) {
    /* The level is the number of samples that a node gets without an exception. A binary search
     * finds the highest level for which `waiting` samples suffice. Its invariant is shares_at(low)
     * <= waiting < shares_at(high), unless all nodes are full. */
    int32_t low = 0, high = waiting + 1;
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (shares_at(s, middle) <= waiting)
            low = middle;
        else
            high = middle;
    }
    for (uint32_t n = 0; n < s->deal->nodes; n++) {
        s->share[n] = share_at(s, n, low);
        waiting -= s->share[n];
    }
    for (; waiting > 0; waiting--) {
        int32_t poorest = -1;
        for (uint32_t n = 0; n < s->deal->nodes; n++)
            if (s->share[n] < share_at(s, n, low + 1) &&
                (poorest < 0 || s->taken[n] < s->taken[poorest]))
                poorest = (int32_t)n;
        s->share[poorest]++;
    }
}

/* Groups the samples by node: first those that the node must load, then those that it holds. Deals
 * each node's samples one by one to its ranks. */
static void hand_out(struct step *s, int32_t *out, int64_t *ends, int32_t *loads) {
    const struct monarch_deal *d = s->deal;
    uint32_t per_node = d->ranks / d->nodes;
    int32_t at = 0;
    for (uint32_t n = 0; n < d->nodes; n++) {
        /* From here on, three arrays hold a position in `by_node` for each node. first: where the
         * node's samples begin. cursor: where to write the next sample that the node holds. queue:
         * where to write the next sample that it must load. */
        s->first[n] = at;
        s->cursor[n] = at + s->share[n];
        s->queue[n] = at;
        at += s->share[n] + s->taken[n];
    }
    uint32_t loading = 0;
    for (int32_t i = 0; i < s->count; i++) {
        if (s->node[i] >= 0) {
            s->by_node[s->cursor[s->node[i]]++] = s->samples[i];
            continue;
        }
        while (s->queue[loading] == s->first[loading] + s->share[loading])
            loading++;
        s->by_node[s->queue[loading]++] = s->samples[i];
    }
    int64_t written = 0, begin = ends[-1];
    for (uint32_t n = 0; n < d->nodes; n++) {
        const int32_t *own = s->by_node + s->first[n];
        uint32_t all = (uint32_t)(s->share[n] + s->taken[n]), share = (uint32_t)s->share[n];
        for (uint32_t rank = 0; rank < per_node; rank++) {
            for (uint32_t k = rank; k < all; k += per_node)
                out[written++] = own[k];
            *loads++ = (int32_t)((share + per_node - 1 - rank) / per_node);
            *ends++ = begin + written;
        }
    }
}

/* Sets the maximum and the minimum number of samples that each node takes. Without a cap, all ranks
 * take the same number; if the division leaves a rest, some ranks take one more. With a cap, a rank
 * takes from `least` samples up to `cap` times an equal share. */
static void bound(struct step *s) {
    const struct monarch_deal *d = s->deal;
    int32_t per_node = (int32_t)(d->ranks / d->nodes), ranks = (int32_t)d->ranks;
    int32_t each = s->count / ranks, rest = s->count % ranks;
    double most = d->cap * s->count / ranks;
    int64_t cap = (int64_t)most + (most > (double)(int64_t)most);
    int64_t room = (cap < d->most ? cap : d->most) * per_node;
    for (int32_t n = 0; n < (int32_t)d->nodes; n++) {
        int32_t longer = smaller(larger(rest - n * per_node, 0), per_node);
        s->room[n] = d->cap <= 0       ? per_node * each + longer
                     : room < s->count ? (int32_t)room
                                       : s->count;
        s->least[n] = d->cap > 0 ? per_node * smaller(d->least, each) : s->room[n];
    }
}

static void deal_step(struct step *s, int32_t *out, int64_t *ends, int32_t *loads) {
    bound(s);
    match(s);
    int32_t waiting = s->count;
    for (uint32_t n = 0; n < s->deal->nodes; n++)
        waiting -= s->taken[n];
    fill_up(s, give_up(s, waiting));
    hand_out(s, out, ends, loads);
}

/* Allocates the arrays of a step as one block. Returns the block, or NULL if memory is
 * exhausted. */
static int32_t *lay_out(struct step *s, uint64_t samples, uint64_t nodes) {
    int32_t *memory = calloc(4 * samples + 9 * nodes, sizeof *memory), *at = memory;
    if (memory == NULL)
        return NULL;
    int32_t **of_samples[] = {&s->node, &s->next, &s->before, &s->by_node};
    int32_t **of_nodes[] = {&s->first, &s->room,  &s->taken, &s->share,
                            &s->least, &s->moved, &s->queue, &s->cursor};
    for (size_t i = 0; i < sizeof of_samples / sizeof *of_samples; i++, at += samples)
        *of_samples[i] = at;
    for (size_t i = 0; i < sizeof of_nodes / sizeof *of_nodes; i++, at += nodes)
        *of_nodes[i] = at;
    s->seen = (uint8_t *)at;
    s->is_dead = s->seen + nodes;
    return memory;
}

int monarch_plan_deal(const struct monarch_deal *deal, const int32_t *order, uint64_t count,
                      int32_t *out, int64_t *starts, int32_t *loads) {
    struct step s = {.deal = deal};
    int32_t *memory = lay_out(&s, deal->per_step, deal->nodes);
    if (memory == NULL)
        return -1;
    starts[0] = 0;
    for (uint64_t done = 0; done < count; done += (uint64_t)s.count) {
        s.samples = order + done;
        s.count = (int32_t)(count - done < deal->per_step ? count - done : deal->per_step);
        deal_step(&s, out + done, starts + 1, loads);
        starts += deal->ranks;
        loads += deal->ranks;
    }
    free(memory);
    return 0;
}
