/* Start-time fair queueing (Goyal et al., 1996) of waiting readers, by rank. When a reader of a
 * rank was served, the rank is due again after the virtual time LAP / share, so a larger share is
 * served more often. */
#include "engine/fair_queue.h"

/* The virtual time from one service of a rank with share 1 to the rank's next service. */
#define LAP (1ULL << 24)

static_assert(MONARCH_DEMANDS == 256,
              "a slot number fits into a byte, and so does the distance between two slots");

void monarch_served(struct fair_queue *q, unsigned rank) {
    if (!rank)
        return;
    q->now = monarch_due(q, rank);
    q->due[rank] = q->now + LAP / q->share[rank];
}

void monarch_line_up(struct line *l, const struct fair_queue *q, const uint64_t *demand,
                     const uint64_t *taken, unsigned first) {
    l->queue = q;
    l->demand = demand;
    l->taken = taken;
    l->first = first;
    l->passed = l->length = 0;
    l->is_known = 0;
}

/* Returns the demand in the slot `place`. A demand says which unit of which file a reader waits
 * for. Returns 0 if the slot is empty, or if a thread already serves this demand. */
static uint64_t look(const struct line *l, unsigned place) {
    uint64_t d = __atomic_load_n(&l->demand[place], __ATOMIC_ACQUIRE);
    return d == l->taken[place] ? 0 : d;
}

static void take_note(struct line *l, uint64_t demand, unsigned place) {
    const struct fair_queue *q = l->queue;
    unsigned rank = monarch_rank_in(q, monarch_demand_rank(demand));
    if (demand && rank)
        l->of_ranks[l->length++] = (struct waiting){.demand = demand,
                                                    .due = monarch_due(q, rank),
                                                    .place = (uint8_t)place,
                                                    .behind = (uint8_t)(place - q->next[rank]),
                                                    .rank = (uint8_t)rank};
}

static int goes_before(const struct waiting *a, const struct waiting *b) {
    return a->due != b->due ? a->due < b->due : a->behind < b->behind;
}

static struct waiting take_first(struct line *l) {
    struct waiting *first = l->of_ranks, found;
    for (unsigned i = 1; i < l->length; i++)
        if (goes_before(&l->of_ranks[i], first))
            first = &l->of_ranks[i];
    found = *first;
    *first = l->of_ranks[--l->length];
    return found;
}

int monarch_next_waiting(struct line *l, struct waiting *w) {
    while (l->passed < MONARCH_DEMANDS) {
        unsigned place = (l->first + l->passed++) % MONARCH_DEMANDS;
        uint64_t d = look(l, place);
        if (!d)
            continue;
        if (!monarch_rank_in(l->queue, monarch_demand_rank(d))) {
            *w = (struct waiting){.demand = d, .place = (uint8_t)place};
            return 1;
        }
        if (!l->is_known) {
            l->is_known = 1;
            take_note(l, d, place);
            for (unsigned k = l->passed; k < MONARCH_DEMANDS; k++)
                take_note(l, look(l, (l->first + k) % MONARCH_DEMANDS),
                          (l->first + k) % MONARCH_DEMANDS);
        }
        if (l->length) {
            *w = take_first(l);
            return 1;
        }
    }
    /* All slots have been visited, but `of_ranks` may still contain readers. Normally, each slot of
     * a reader with a rank yields one of them. But if a demand has ended or was taken since
     * `of_ranks` was filled, its slot has yielded none. So yield the remaining readers now. */
    if (l->length) {
        *w = take_first(l);
        return 1;
    }
    return 0;
}

unsigned monarch_served_reader(const struct line *l, struct fair_queue *q,
                               const struct waiting *w) {
    monarch_served(q, w->rank);
    q->next[w->rank] = (uint8_t)(w->place + 1);
    return (l->first + l->passed) % MONARCH_DEMANDS;
}
