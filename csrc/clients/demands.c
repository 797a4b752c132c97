#include "clients/demands.h"

#include "native.h"
#include "shared/doorbell.h"

/* Returns the futex on which the reader of this demand sleeps. The futex is the first half of the
 * demand's 64-bit word. */
static uint32_t *futex_of(uint64_t *demand) { return (uint32_t *)demand; }

void monarch_answer(struct monarch_clients *m, uint64_t entry, uint64_t first, uint64_t count) {
    for (int i = 0; i < MONARCH_DEMANDS; i++) {
        uint64_t d = __atomic_load_n(&m->demand[i], __ATOMIC_ACQUIRE);
        if (d && monarch_demand_entry(d) == entry && monarch_demand_unit(d) - first < count &&
            __atomic_compare_exchange_n(&m->demand[i], &d, 0, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED))
            monarch_futex_wake(futex_of(&m->demand[i]));
    }
}

int monarch_is_requested(const struct monarch_clients *m, uint64_t id) {
    return id < MONARCH_MAX_FILES && monarch_bit_is_set(m->wanted.word, id);
}

static int is_settled(const struct monarch_clients *m, const struct monarch_catalog *c,
                      uint64_t id) {
    if (id >= c->count)
        return 1;
    uint64_t word = __atomic_load_n(&monarch_entries(c)[id].word, __ATOMIC_ACQUIRE);
    unsigned state = MONARCH_WORD_STATE(word);
    return state != MONARCH_WANTED && state != MONARCH_FILLING &&
           !(state == MONARCH_ABSENT && monarch_is_requested(m, id));
}

/* First reads all demands, and then answers them. A reader that is woken by an answer may place a
 * new demand at once, which this call must not answer. */
uint64_t monarch_answer_settled(struct monarch_clients *m, const struct monarch_catalog *c) {
    uint64_t standing[MONARCH_DEMANDS], waiting = 0;
    for (int i = 0; i < MONARCH_DEMANDS; i++)
        standing[i] = __atomic_load_n(&m->demand[i], __ATOMIC_ACQUIRE);
    for (int i = 0; i < MONARCH_DEMANDS; i++) {
        uint64_t d = standing[i];
        if (d && !is_settled(m, c, monarch_demand_entry(d)))
            waiting++;
        else if (d && __atomic_compare_exchange_n(&m->demand[i], &d, 0, 0, __ATOMIC_SEQ_CST,
                                                  __ATOMIC_RELAXED))
            monarch_futex_wake(futex_of(&m->demand[i]));
    }
    return waiting;
}
