#include "simulator/pfs.h"

#include <math.h>
#include <stdlib.h>

static int open_share(struct share *s, uint32_t nodes) {
    s->ends.event = calloc(nodes, sizeof *s->ends.event);
    s->first = malloc(nodes * sizeof *s->first);
    s->waiting = calloc(nodes, sizeof *s->waiting);
    s->end = calloc(nodes, sizeof *s->end);
    for (uint32_t n = 0; s->first && n < nodes; n++)
        s->first[n] = PFS_NONE;
    return s->ends.event && s->first && s->waiting && s->end;
}

int pfs_open(struct pfs *p, const struct monarch_sim_job *job, uint32_t askers) {
    p->job = job;
    p->request = calloc(askers, sizeof *p->request);
    p->link_free = calloc(job->nodes, sizeof *p->link_free);
    int opened = open_share(&p->share[0], job->nodes);
    return open_share(&p->share[1], job->nodes) && opened && p->request && p->link_free;
}

void pfs_close(struct pfs *p) {
    for (int i = 0; i < 2; i++) {
        free(p->share[i].ends.event);
        free(p->share[i].first);
        free(p->share[i].waiting);
        free(p->share[i].end);
    }
    free(p->request);
    free(p->link_free);
}

static double each(const struct pfs *p, uint32_t clients) { return p->job->pfs[clients] / clients; }

/* Returns the element of `share` for the kind of request that is being served, or NULL if there is
 * no request. Only one kind is served at a time. */
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
    return a->priority < b->priority || (a->priority == b->priority && a->number < b->number);
}

static struct share *share_of(struct pfs *p, const struct request *r) {
    return &p->share[r->priority == PFS_LAST];
}

static void begin(struct share *s, struct request *r) {
    s->end[r->node] = s->clock + r->left;
    heap_push(&s->ends, s->end[r->node], r->node);
}

/* Inserts a request into its node's queue, which is sorted by priority. The first request is being
 * served, so a new request is never put before it. */
static void put_in(struct pfs *p, struct request *r) {
    struct share *s = share_of(p, r);
    uint32_t *at = &s->first[r->node];
    if (*at == PFS_NONE) {
        r->next = PFS_NONE;
        *at = r->who;
        begin(s, r);
        return;
    }
    do
        at = &p->request[*at].next;
    while (*at != PFS_NONE && comes_before(&p->request[*at], r));
    r->next = *at;
    *at = r->who;
    s->waiting[r->node] += r->left;
}

/* Removes the node's request that is being served, and starts to serve the node's next request, if
 * there is one. */
static void end_first(struct pfs *p, struct share *s, uint32_t node) {
    s->first[node] = p->request[s->first[node]].next;
    if (s->first[node] == PFS_NONE)
        return;
    struct request *r = &p->request[s->first[node]];
    s->waiting[node] -= r->left;
    begin(s, r);
}

void pfs_ask(struct pfs *p, double now, uint64_t priority, uint32_t node, uint32_t who,
             double bytes) {
    account(p, now);
    p->request[who] =
        (struct request){priority, p->numbers++, bytes, bytes, now, node, who, PFS_NONE};
    put_in(p, &p->request[who]);
}

void pfs_hurry(struct pfs *p, double now, uint64_t priority, uint32_t who) {
    struct request *r = &p->request[who];
    struct share *s = share_of(p, r);
    int is_served = s->first[r->node] == who;
    if (priority >= r->priority || (is_served && r->priority != PFS_LAST))
        return;
    account(p, now);
    if (is_served) {
        r->left = s->end[r->node] > s->clock ? s->end[r->node] - s->clock : 0;
        heap_drop(&s->ends, r->node);
        end_first(p, s, r->node);
    } else {
        uint32_t *at = &s->first[r->node];
        while (*at != who)
            at = &p->request[*at].next;
        *at = r->next;
        s->waiting[r->node] -= r->left;
    }
    r->priority = priority;
    put_in(p, r);
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
    struct request taken = p->request[s->first[node]];
    end_first(p, s, node);
    double from = p->link_free[node] > taken.asked ? p->link_free[node] : taken.asked;
    double link = from + taken.bytes / p->job->pfs_link[node];
    *end = link > now ? link : now;
    p->link_free[node] = link;
    return taken;
}

double pfs_guess(const struct pfs *p, double now, uint32_t node, double bytes) {
    const struct share *s = &p->share[0];
    int is_client = s->first[node] != PFS_NONE;
    uint32_t clients = s->ends.n + !is_client;
    double ahead = 0;
    if (is_client) { /* count only the part of the first request that is not sent yet */
        double clock = s->clock + (now - p->since) * each(p, s->ends.n);
        ahead = s->end[node] - clock + s->waiting[node];
    }
    double end = now + ((ahead > 0 ? ahead : 0) + bytes) / each(p, clients);
    double link = p->link_free[node] > now ? p->link_free[node] : now;
    link += bytes / p->job->pfs_link[node];
    return end > link ? end : link;
}
