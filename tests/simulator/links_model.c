/* Checks the simulated links (csrc/simulator/links.c) against the definition of max-min fairness:
 * no link carries more than its rate, and each transfer has a full link on which no other transfer
 * is faster. A plain model follows the bytes of each transfer.
 *
 *   links_model RUNS */
#include "simulator/links.h"

#include <math.h>

#include "model_checks.h"

#define NODES 5
#define ASKERS 12
#define STEPS 30

/* The relative difference that is allowed between the results of this model and of links.c. The
 * results are not equal, because the two programs round rates and times in different orders. */
#define ROUNDING 1e-9

static struct moved {
    int is_open;
    uint32_t from, to;
    double left, earliest;
} all[ASKERS];
static double now, rates[NODES];

static const struct transfer *of(const struct links *l, uint32_t who) {
    for (uint32_t i = 0; i < l->n; i++)
        if (l->transfer[i].who == who)
            return &l->transfer[i];
    return NULL;
}

/* Returns whether the link out of the node (is_in 0) or into it (is_in 1) is full, and no transfer
 * on it is faster than `rate`. Also checks that the link carries no more than its rate. */
static int bounds(const struct links *l, uint32_t node, int is_in, double rate) {
    double sum = 0, fastest = 0;
    for (uint32_t who = 0; who < ASKERS; who++) {
        if (!all[who].is_open || (is_in ? all[who].to : all[who].from) != node)
            continue;
        double other = of(l, who)->rate;
        sum += other;
        fastest = other > fastest ? other : fastest;
    }
    CHECK(sum <= rates[node] * (1 + ROUNDING));
    return sum >= rates[node] * (1 - ROUNDING) && rate >= fastest * (1 - ROUNDING);
}

static void check_rates(struct links *l) {
    double end = INFINITY;
    uint32_t n = 0;
    double told = links_next(l);
    for (uint32_t who = 0; who < ASKERS; who++) {
        if (!all[who].is_open)
            continue;
        const struct transfer *t = of(l, who);
        CHECK(t && t->from == all[who].from && t->to == all[who].to && t->rate > 0);
        CHECK(bounds(l, t->from, 0, t->rate) + bounds(l, t->to, 1, t->rate) > 0);
        double its_end = now + fmax(all[who].left, 0) / t->rate;
        end = its_end < end ? its_end : end;
        n++;
    }
    CHECK(l->n == n && (n ? fabs(told - end) <= ROUNDING * end : told == INFINITY));
}

static void advance(const struct links *l, double to) {
    for (uint32_t who = 0; who < ASKERS; who++)
        if (all[who].is_open)
            all[who].left -= of(l, who)->rate * (to - now);
    now = to;
}

static void begin(struct links *l, uint32_t who) {
    uint32_t from = below(NODES), to = (from + 1 + below(NODES - 1)) % NODES;
    struct transfer asked = {.who = who, .from = from, .to = to, .left = below(20)};
    asked.earliest = now + who;
    all[who] = (struct moved){1, from, to, asked.left, asked.earliest};
    links_ask(l, now, asked);
}

/* Ends the transfer that links.c chooses. In the model, this transfer must have no bytes left. */
static void end(struct links *l) {
    double when = links_next(l);
    advance(l, when);
    struct transfer taken = links_take(l, when);
    CHECK(all[taken.who].is_open && fabs(all[taken.who].left) <= 20 * ROUNDING);
    CHECK(taken.earliest == all[taken.who].earliest);
    all[taken.who].is_open = 0;
}

static void check_guess(const struct links *l) {
    uint32_t from = below(NODES), to = (from + 1) % NODES, out = 1, in = 1;
    for (uint32_t who = 0; who < ASKERS; who++) {
        out += all[who].is_open && all[who].from == from;
        in += all[who].is_open && all[who].to == to;
    }
    double slowest = fmin(rates[from] / out, rates[to] / in);
    CHECK(links_guess(l, now, from, to, 6) == now + 6 / slowest);
}

/* If transfers end at the same time, links_take must return the one with the lowest `who` first. */
static void check_ties(void) {
    struct monarch_sim_job job = {.nodes = 4, .network = rates};
    struct links l = {0};
    const uint32_t order[] = {7, 2, 5, 3};
    for (int i = 0; i < NODES; i++)
        rates[i] = 4;
    CHECK(links_open(&l, &job, 8));
    for (uint32_t i = 0; i < 4; i++)
        links_ask(&l, 0,
                  (struct transfer){.who = order[i], .from = i, .to = (i + 1) % 4, .left = 8});
    const uint32_t sorted[] = {2, 3, 5, 7};
    for (int i = 0; i < 4; i++) {
        CHECK(links_next(&l) == 2);
        CHECK(links_take(&l, 2).who == sorted[i]);
    }
    CHECK(links_next(&l) == INFINITY);
    links_close(&l);
}

int main(int argc, char **argv) {
    unsigned long long runs = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    check_ties();
    for (run = 0; run < runs; run++) {
        struct monarch_sim_job job = {.nodes = NODES, .network = rates};
        struct links l = {0};
        state = run;
        now = 0;
        for (uint32_t n = 0; n < NODES; n++)
            rates[n] = 1 + below(9);
        for (uint32_t i = 0; i < ASKERS; i++)
            all[i].is_open = 0;
        CHECK(links_open(&l, &job, ASKERS));
        for (int i = 0; i < STEPS; i++) {
            uint32_t who = below(ASKERS);
            check_rates(&l);
            if (all[who].is_open) {
                end(&l);
            } else {
                double soon = now + below(8) / 8.0, next = links_next(&l);
                advance(&l, soon < next ? soon : next);
                begin(&l, who);
            }
            check_guess(&l);
        }
        check_rates(&l);
        links_close(&l);
    }
    printf("%llu runs\n", run);
}
