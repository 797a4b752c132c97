#include "pfs.h"

#include <math.h>
#include <stdlib.h>

static int open_share(struct share *s, uint32_t nodes, uint32_t most) {
    s->ends.event = calloc(nodes, sizeof *s->ends.event);
    s->request = calloc((size_t)nodes * most, sizeof *s->request);
    s->n = calloc(nodes, sizeof *s->n);
    s->bytes = calloc(nodes, sizeof *s->bytes);
    s->end = calloc(nodes, sizeof *s->end);
    return s->ends.event && s->request && s->n && s->bytes && s->end;
}

int pfs_open(struct pfs *p, const struct monarch_sim_job *job, uint32_t most) {
    p->job = job;
    p->most = most;
    p->link_free = calloc(job->nodes, sizeof *p->link_free);
    int opened = open_share(&p->share[0], job->nodes, most);
    return open_share(&p->share[1], job->nodes, most) && opened && p->link_free;
}

void pfs_close(struct pfs *p) {
    for (int i = 0; i < 2; i++) {
        free(p->share[i].ends.event);
        free(p->share[i].request);
        free(p->share[i].n);
        free(p->share[i].bytes);
        free(p->share[i].end);
    }
    free(p->link_free);
}

static double each(const struct pfs *p, uint32_t clients) { return p->job->pfs[clients] / clients; }

/* The share that is served now, or NULL. */
static struct share *served(struct pfs *p) {
    for (int i = 0; i < 2; i++)
        if (p->share[i].ends.n)
            return &p->share[i];
    return NULL;
}

static void account(struct pfs *p, double now) {
    struct share *s = served(p);
    if (s) {
        s->clock += (now - p->since) * each(p, s->ends.n);
        p->busy += now - p->since;
    }
    p->since = now;
}

static int comes_before(const struct request *a, const struct request *b) {
    return a->turn < b->turn || (a->turn == b->turn && a->number < b->number);
}

/* The node's request that comes first is served next. */
static void begin(struct pfs *p, struct share *s, uint32_t node) {
    struct request *r = &s->request[(size_t)node * p->most], first;
    uint32_t best = 0;
    for (uint32_t i = 1; i < s->n[node]; i++)
        if (comes_before(&r[i], &r[best]))
            best = i;
    first = r[best];
    r[best] = r[0];
    r[0] = first;
    s->end[node] = s->clock + first.bytes;
    heap_push(&s->ends, s->end[node], node);
}

void pfs_ask(struct pfs *p, double now, uint64_t turn, uint32_t node, uint32_t who, double bytes) {
    struct share *s = &p->share[turn == PFS_LAST];
    account(p, now);
    s->request[(size_t)node * p->most + s->n[node]++] =
        (struct request){turn, p->numbers++, bytes, now, node, who};
    s->bytes[node] += bytes;
    if (s->n[node] == 1)
        begin(p, s, node);
}

double pfs_next(const struct pfs *p) {
    const struct share *s = served((struct pfs *)p);
    if (!s)
        return INFINITY;
    double left = s->ends.event[0].at - s->clock;
    return p->since + (left > 0 ? left : 0) / each(p, s->ends.n);
}

struct request pfs_take(struct pfs *p, double now, double *end) {
    account(p, now);
    struct share *s = served(p);
    uint32_t node = heap_pop(&s->ends).who;
    struct request *r = &s->request[(size_t)node * p->most], taken = r[0];
    s->bytes[node] -= taken.bytes;
    r[0] = r[--s->n[node]];
    if (s->n[node])
        begin(p, s, node);
    double from = p->link_free[node] > taken.asked ? p->link_free[node] : taken.asked;
    double link = from + taken.bytes / p->job->pfs_link[node];
    *end = link > now ? link : now;
    p->link_free[node] = link;
    return taken;
}

double pfs_guess(const struct pfs *p, double now, uint32_t node, double bytes) {
    const struct share *s = &p->share[0];
    uint32_t clients = s->ends.n + !s->n[node];
    double ahead = s->bytes[node];
    if (s->n[node]) { /* of the first a part is given */
        double clock = s->clock + (now - p->since) * each(p, s->ends.n);
        ahead += s->end[node] - clock - s->request[(size_t)node * p->most].bytes;
    }
    double end = now + ((ahead > 0 ? ahead : 0) + bytes) / each(p, clients);
    double link = p->link_free[node] > now ? p->link_free[node] : now;
    link += bytes / p->job->pfs_link[node];
    return end > link ? end : link;
}
