/* Compares the simulated file system (csrc/simulator/pfs.c) with a plain model. pfs.c has a heap,
 * linked lists and a clock that counts bytes. The model has none of these: for each request, it
 * stores how many bytes remain.
 *
 *   pfs_model RUNS
 *
 * All rates are powers of 2 and a run is short, so all numbers are exact, and pfs.c and the model
 * must compute the same bits. Many requests end at the same time, and many have the same priority.
 */
#include "simulator/pfs.h"

#include <math.h>

#include "model_checks.h"

#define NODES 9
#define ASKERS 24
#define STEPS 14

/* --- the model -------------------------------------------------------------------------------- */

static struct asked {
    /* is_served: the file system is serving this request. It serves at most one request of each
     * node and kind at a time. */
    int is_open, is_served;
    uint64_t priority, number;
    double bytes, left, asked;
    uint32_t node;
} all[ASKERS];
static double now, busy, link_free[NODES], rates[NODES + 1], links[NODES];
static uint64_t numbers;

static int kind_of(const struct asked *r) { return r->priority == PFS_LAST; }

/* Returns how many nodes have requests of this kind. */
static uint32_t clients_of(int kind) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < ASKERS; i++)
        n += all[i].is_open && all[i].is_served && kind_of(&all[i]) == kind;
    return n;
}

static int kind_now(void) { return clients_of(0) ? 0 : 1; }

static double each(uint32_t clients) { return rates[clients] / clients; }

static void advance(double to) {
    int kind = kind_now();
    uint32_t clients = clients_of(kind);
    for (uint32_t i = 0; i < ASKERS && clients; i++)
        if (all[i].is_open && all[i].is_served && kind_of(&all[i]) == kind)
            all[i].left -= (to - now) * each(clients);
    busy += clients ? to - now : 0;
    now = to;
}

/* If no request of this node and kind is being served, chooses the request to be served next. */
static void choose(uint32_t node, int kind) {
    struct asked *best = NULL;
    for (uint32_t i = 0; i < ASKERS; i++) {
        struct asked *r = &all[i];
        if (!r->is_open || r->node != node || kind_of(r) != kind)
            continue;
        if (r->is_served)
            return;
        if (!best || r->priority < best->priority ||
            (r->priority == best->priority && r->number < best->number))
            best = r;
    }
    if (best)
        best->is_served = 1;
}

static void ask(uint64_t priority, uint32_t node, uint32_t who, double bytes) {
    all[who] = (struct asked){1, 0, priority, numbers++, bytes, bytes, now, node};
    choose(node, kind_of(&all[who]));
}

static void hurry(uint64_t priority, uint32_t who) {
    struct asked *r = &all[who];
    int kind = kind_of(r);
    if (priority >= r->priority || (r->is_served && kind == 0))
        return;
    r->is_served = 0;
    r->priority = priority;
    choose(r->node, kind);
    choose(r->node, kind_of(r));
}

/* Returns the asker whose request ends first, or ASKERS if there is no request. */
static uint32_t first_end(void) {
    uint32_t best = ASKERS;
    int kind = kind_now();
    for (uint32_t i = 0; i < ASKERS; i++) {
        const struct asked *r = &all[i];
        if (r->is_open && r->is_served && kind_of(r) == kind &&
            (best == ASKERS || r->left < all[best].left ||
             (r->left == all[best].left && r->node < all[best].node)))
            best = i;
    }
    return best;
}

static double next(void) {
    uint32_t who = first_end();
    return who == ASKERS ? INFINITY : now + all[who].left / each(clients_of(kind_now()));
}

static double link_end(uint32_t node, double from, double bytes) {
    return (link_free[node] > from ? link_free[node] : from) + bytes / links[node];
}

static double guess(uint32_t node, double bytes) {
    uint32_t clients = clients_of(0), is_client = 0;
    for (uint32_t i = 0; i < ASKERS; i++)
        if (all[i].is_open && all[i].node == node && kind_of(&all[i]) == 0)
            is_client = 1;
    double link = link_end(node, now, bytes);
    for (uint32_t i = 0; i < ASKERS; i++)
        if (all[i].is_open && all[i].node == node && kind_of(&all[i]) == 0)
            bytes += all[i].left;
    double end = now + bytes / each(clients + !is_client);
    return end > link ? end : link;
}

/* --- both ------------------------------------------------------------------------------------- */

static void take(struct pfs *p) {
    double end, when = pfs_next(p);
    uint32_t who = first_end();
    advance(when);
    struct asked *r = &all[who];
    struct request taken = pfs_take(p, when, &end);
    CHECK(taken.who == who && taken.node == r->node && taken.bytes == r->bytes);
    CHECK(taken.asked == r->asked && taken.priority == r->priority);
    link_free[r->node] = link_end(r->node, r->asked, r->bytes);
    CHECK(end == (link_free[r->node] > now ? link_free[r->node] : now));
    r->is_open = 0;
    choose(r->node, kind_of(r));
}

/* Returns a random time, not before now, up to which no request ends. */
static double some_time(const struct pfs *p) {
    double when = now + below(5), end = pfs_next(p);
    return when < end ? when : end;
}

static void step(struct pfs *p) {
    uint32_t who = below(ASKERS), node = below(NODES);
    uint64_t priority = below(3) ? below(4) : PFS_LAST;
    double bytes = below(9), when = some_time(p);
    if (below(4) == 0 && first_end() < ASKERS) {
        take(p);
    } else if (!all[who].is_open) {
        advance(when);
        pfs_ask(p, now, priority, node, who, bytes);
        ask(priority, node, who, bytes);
    } else {
        advance(when);
        pfs_hurry(p, now, priority, who);
        hurry(priority, who);
    }
    CHECK(pfs_next(p) == next());
    advance(some_time(p));
    for (node = 0; node < NODES; node++)
        CHECK(pfs_guess(p, now, node, 5) == guess(node, 5));
}

int main(int argc, char **argv) {
    unsigned long long runs = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    for (run = 0; run < runs; run++) {
        struct monarch_sim_job job = {.nodes = NODES, .pfs = rates, .pfs_link = links};
        struct pfs p = {0};
        state = run;
        now = busy = numbers = 0;
        for (uint32_t i = 0; i < ASKERS; i++)
            all[i].is_open = 0;
        for (uint32_t n = 0; n < NODES; n++) {
            links[n] = 1 << below(5);
            link_free[n] = 0;
            rates[n + 1] = (double)(n + 1) * (n < 2 ? 4 : n < 4 ? 2 : 1);
        }
        CHECK(pfs_open(&p, &job, ASKERS));
        CHECK(pfs_next(&p) == INFINITY);
        uint32_t begin = below(ASKERS); /* some requests are there from the beginning */
        for (uint32_t who = 0; who < begin; who++) {
            uint64_t priority = below(3) ? below(4) : PFS_LAST;
            uint32_t node = below(NODES), bytes = below(9);
            pfs_ask(&p, now, priority, node, who, bytes);
            ask(priority, node, who, bytes);
        }
        for (int i = 0; i < STEPS; i++)
            step(&p);
        while (first_end() < ASKERS)
            take(&p);
        CHECK(p.busy == busy);
        pfs_close(&p);
    }
    printf("%llu runs\n", run);
}
