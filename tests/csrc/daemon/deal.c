#include "plan/deal.c"

#include "checks.h"

#define MOST 48 /* samples */
#define NODES 4

static uint64_t seed = 5;
static uint64_t draw(uint64_t n) { return below(&seed, n); }

static struct monarch_deal deal;
static int32_t holders[MOST * NODES], order[MOST];

static int holds(int32_t sample, uint32_t node) {
    for (uint32_t k = 0; k < deal.width; k++)
        if (holders[(uint32_t)sample * deal.width + k] == (int32_t)node)
            return 1;
    return 0;
}

/* Returns the largest number of samples that can be taken by nodes that hold them, if each node
 * takes at most the number of samples in `room`. Sets taken_by[i] to the node that takes sample i,
 * or to -1 if no node takes it. */
static int most_held(const int32_t *samples, int32_t n, const int32_t *room, int32_t *taken_by) {
    int32_t count[NODES] = {0};
    int best = 0;
    for (int32_t i = 0; i < n; i++)
        taken_by[i] = -1;
    for (int32_t i = 0; i < n; i++) { /* finds augmenting paths by breadth-first search */
        int32_t from[MOST], queue[MOST], head = 0, tail = 0, end = -1, via[NODES];
        for (int k = 0; k < NODES; k++)
            via[k] = -1;
        for (int k = 0; k < MOST; k++)
            from[k] = -2;
        from[i] = -1;
        queue[tail++] = i;
        while (head < tail && end < 0) {
            int32_t at = queue[head++];
            for (uint32_t node = 0; node < deal.nodes && end < 0; node++) {
                if (!holds(samples[at], node) || via[node] >= 0)
                    continue;
                via[node] = at;
                if (count[node] < room[node])
                    end = (int32_t)node;
                for (int32_t other = 0; other < n; other++)
                    if (taken_by[other] == (int32_t)node && from[other] == -2) {
                        from[other] = at;
                        queue[tail++] = other;
                    }
            }
        }
        if (end < 0)
            continue;
        best++;
        count[end]++;
        for (int32_t node = end;;) {
            int32_t at = via[node], was = taken_by[at];
            taken_by[at] = node;
            if (at == i)
                break;
            node = was;
        }
    }
    return best;
}

/* Checks that a single step meets everything that monarch_plan_deal promises. */
static void check_step(int is_capped, const int32_t *samples, int32_t count, const int32_t *out,
                       const int64_t *starts, const int32_t *loads) {
    uint32_t per_node = deal.ranks / deal.nodes;
    int32_t seen[MOST] = {0}, held[MOST];
    int32_t room[NODES], per_rank = count / (int32_t)deal.ranks, rest = count % (int32_t)deal.ranks;
    double most = deal.cap * count / deal.ranks;
    int32_t cap = (int32_t)most + (most > (int32_t)most);
    cap = cap < deal.most ? cap : deal.most;
    int32_t all_loads = 0, node_loads[NODES] = {0}, node_all[NODES] = {0};
    SAME(starts[deal.ranks] - starts[0], count);
    for (int32_t rank = 0; rank < (int32_t)deal.ranks; rank++) {
        int32_t n = (int32_t)(starts[rank + 1] - starts[rank]), node = rank / (int32_t)per_node;
        if (!is_capped)
            SAME(n, per_rank + (rank < rest));
        CHECK(loads[rank] >= 0 && loads[rank] <= n);
        for (int32_t k = 0; k < n; k++) {
            int32_t sample = out[starts[rank] + k];
            CHECK(sample >= 0 && sample < MOST && !seen[sample]++);
            if (k >= loads[rank])
                CHECK(holds(sample, (uint32_t)node));
        }
        node_loads[node] += loads[rank];
        node_all[node] += n;
        all_loads += loads[rank];
    }
    for (int32_t i = 0; i < count; i++)
        SAME(seen[samples[i]], 1);
    int shortest = MOST, longest = 0;
    for (uint32_t n = 0; n < deal.nodes; n++) {
        int32_t over = rest - (int32_t)(n * per_node);
        over = over < 0 ? 0 : over > (int32_t)per_node ? (int32_t)per_node : over;
        room[n] = is_capped ? cap * (int32_t)per_node : per_rank * (int32_t)per_node + over;
        room[n] = room[n] < count ? room[n] : count;
        CHECK(node_all[n] <= room[n]);
        int32_t least = (deal.least < per_rank ? deal.least : per_rank) * (int32_t)per_node;
        if (is_capped)
            CHECK(node_all[n] >= least);
        /* the ranks of a node share its samples evenly */
        for (uint32_t r = n * per_node; r < (n + 1) * per_node; r++) {
            int32_t k = (int32_t)(starts[r + 1] - starts[r]);
            CHECK(k * (int32_t)per_node <= node_all[n] + (int32_t)per_node - 1);
            CHECK((k + 1) * (int32_t)per_node > node_all[n]);
        }
        /* A node is bound if its number of samples is the largest or the smallest allowed. Any two
         * nodes that are not bound must load numbers of samples that differ by at most one. */
        int is_bound = node_all[n] == room[n] || node_all[n] == least;
        if (is_capped && !is_bound) {
            shortest = node_loads[n] < shortest ? node_loads[n] : shortest;
            longest = node_loads[n] > longest ? node_loads[n] : longest;
        }
    }
    CHECK(longest <= shortest + 1 || longest == 0);
    int best = most_held(samples, count, room, held);
    if (!is_capped || !deal.least)
        /* as many samples as possible go to a node that holds them */
        SAME(count - all_loads, best);
    CHECK(count - all_loads <= best);
}

/* Draws a random input for a deal of several steps, computes the deal, and checks each step. */
static void try(int is_capped) {
    uint32_t per_node = 1 + (uint32_t)draw(3);
    deal =
        (struct monarch_deal){.nodes = 1 + (uint32_t)draw(NODES), .width = 1 + (uint32_t)draw(2)};
    deal.ranks = deal.nodes * per_node;
    deal.per_step = deal.ranks * (1 + draw(MOST / 3 / deal.ranks + 1));
    deal.holders = holders;
    uint64_t steps = MOST / deal.per_step;
    int32_t count = (int32_t)(draw(steps) * deal.per_step + 1 + draw(deal.per_step));
    for (int i = 0; i < MOST; i++) {
        order[i] = i;
        for (uint32_t k = 0; k < deal.width; k++) {
            /* node 0 holds most samples, so that it becomes full */
            uint64_t node = draw(2) ? draw(deal.nodes) : 0;
            holders[(uint32_t)i * deal.width + k] = draw(5) ? (int32_t)node : -1;
        }
    }
    for (int i = MOST - 1; i > 0; i--) {
        int j = (int)draw((uint64_t)i + 1), was = order[i];
        order[i] = order[j];
        order[j] = was;
    }
    int32_t share = (int32_t)(deal.per_step / deal.ranks);
    if (is_capped) {
        deal.cap = 1 + (double)draw(5) / 4;
        double most = deal.cap * share;
        deal.most = (int32_t)most + (most > (int32_t)most);
        deal.least = (int32_t)draw((uint64_t)share + 1);
    }
    int32_t out[MOST], loads[MOST * NODES * 3];
    int64_t starts[MOST * NODES * 3 + 1];
    SAME(monarch_plan_deal(&deal, order, (uint64_t)count, out, starts, loads), 0);
    SAME(starts[0], 0);
    for (int32_t at = 0, step = 0; at < count; at += (int32_t)deal.per_step, step++) {
        int32_t n = count - at < (int32_t)deal.per_step ? count - at : (int32_t)deal.per_step;
        int32_t batch = step * (int32_t)deal.ranks;
        SAME(starts[batch], at);
        check_step(is_capped, order + at, n, out, starts + batch, loads + batch);
    }
    SAME(
        starts[(count + (int32_t)deal.per_step - 1) / (int32_t)deal.per_step * (int32_t)deal.ranks],
        count);
}
TEST(equal_shares_load_as_little_as_possible) {
    for (int i = 0; i < 1500; i++)
        try(0);
}

TEST(capped_shares_keep_their_bounds) {
    for (int i = 0; i < 1500; i++)
        try(1);
}

/* A sample goes to its owner, which is its first holder, if the owner has room. Otherwise it goes
 * to the holder with the most room. */
TEST(an_owner_with_room_gets_its_samples) {
    int32_t own[] = {0, 2, 1}, room[] = {1, 9, 5}, taken[] = {0, 4, 1}, samples[] = {0};
    struct monarch_deal three = {.nodes = 3, .width = 3, .holders = own};
    struct step s = {.deal = &three, .samples = samples, .room = room, .taken = taken};
    SAME(freest(&s, 0), 0);
    taken[0] = 1;
    SAME(freest(&s, 0), 1); /* five places against four */
    taken[1] = 6;
    SAME(freest(&s, 0), 2);
    own[1] = -1;
    SAME(freest(&s, 0), 1);
    taken[1] = 9;
    SAME(freest(&s, 0), -1);
}
