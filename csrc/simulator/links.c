#include "simulator/links.h"

#include <math.h>
#include <stdlib.h>

int links_open(struct links *l, const struct monarch_sim_job *job, uint32_t askers) {
    l->job = job;
    l->transfer = calloc((size_t)askers + 1, sizeof *l->transfer);
    l->room = calloc((size_t)job->nodes * 2, sizeof *l->room);
    l->users = calloc((size_t)job->nodes * 2, sizeof *l->users);
    return l->transfer && l->room && l->users;
}

void links_close(struct links *l) {
    free(l->transfer);
    free(l->room);
    free(l->users);
}

static uint32_t way_out(const struct transfer *t) { return t->from; }
static uint32_t way_in(const struct links *l, const struct transfer *t) {
    return l->job->nodes + t->to;
}

/* Gives the rate `each` to every transfer over `link` that has no rate yet. Subtracts this rate
 * from the free rates of the transfer's two links. */
static void give(struct links *l, uint32_t link, double each) {
    for (uint32_t i = 0; i < l->n; i++) {
        struct transfer *t = &l->transfer[i];
        uint32_t out = way_out(t), in = way_in(l, t);
        if (t->rate >= 0 || (out != link && in != link))
            continue;
        t->rate = each;
        l->room[out] -= each;
        l->room[in] -= each;
        l->users[out]--;
        l->users[in]--;
    }
}

/* Computes the rates of all transfers, in steps. Each step divides the free rate of each link by
 * the number of its transfers without a rate. It then chooses the link with the smallest quotient.
 * That link's transfers without a rate get this quotient as their rate (give). */
static void share_out(struct links *l) {
    uint32_t links = 2 * l->job->nodes;
    for (uint32_t i = 0; i < links; i++) {
        l->room[i] = l->job->network[i % l->job->nodes];
        l->users[i] = 0;
    }
    for (uint32_t i = 0; i < l->n; i++) {
        l->transfer[i].rate = -1;
        l->users[way_out(&l->transfer[i])]++;
        l->users[way_in(l, &l->transfer[i])]++;
    }
    for (;;) {
        uint32_t full = links;
        double least = INFINITY;
        for (uint32_t i = 0; i < links; i++)
            if (l->users[i] && l->room[i] / l->users[i] < least) {
                full = i;
                least = l->room[i] / l->users[i];
            }
        if (full == links)
            return;
        /* because of rounding, `least` may be slightly below 0 */
        give(l, full, least > 0 ? least : 0);
    }
}

static void find_next(struct links *l) {
    l->end = INFINITY;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct transfer *t = &l->transfer[i];
        double end = t->left > 0 ? l->since + t->left / t->rate : l->since;
        if (end < l->end || (end == l->end && t->who < l->transfer[l->next].who)) {
            l->end = end;
            l->next = i;
        }
    }
}

/* Subtracts, from what each transfer must still move, the bytes that it has moved since the last
 * call. Call this before a rate is changed. */
static void account(struct links *l, double now) {
    for (uint32_t i = 0; i < l->n; i++)
        l->transfer[i].left -= l->transfer[i].rate * (now - l->since);
    l->since = now;
    l->has_rates = 0;
}

void links_ask(struct links *l, double now, struct transfer asked) {
    links_next(l);
    account(l, now);
    l->transfer[l->n++] = asked;
}

double links_next(struct links *l) {
    if (!l->has_rates) {
        share_out(l);
        find_next(l);
        l->has_rates = 1;
    }
    return l->end;
}

struct transfer links_take(struct links *l, double now) {
    links_next(l);
    account(l, now);
    struct transfer taken = l->transfer[l->next];
    l->transfer[l->next] = l->transfer[--l->n];
    return taken;
}

double links_guess(const struct links *l, double now, uint32_t from, uint32_t to, double bytes) {
    uint32_t out = 1, in = 1;
    for (uint32_t i = 0; i < l->n; i++) {
        out += l->transfer[i].from == from;
        in += l->transfer[i].to == to;
    }
    double most_out = l->job->network[from] / out, most_in = l->job->network[to] / in;
    return now + bytes / (most_out < most_in ? most_out : most_in);
}
