/* Which of the copying threads are woken, and when they sleep.
 *
 * A thread is woken only for work that it can do, and no work is left lying while a thread that
 * could do it sleeps. This is how:
 *
 * - Work is made under the pool's lock. Then the bell of its way is rung, which changes the bell's
 *   word and wakes one thread that could do the work. A thread reads the word before it looks for
 *   work, and sleeps only while the word is unchanged, so that a thread that looked too early does
 *   not fall asleep.
 * - A thread that has looked for work and leaves some to threads that sleep wakes one of them, and
 *   does not change the word. The work's own ring changes the word: if that ring has come, only
 *   sleeping threads do not know of the work; if it is still to come, it wakes one more. But a
 *   thread that leaves one peer for another does ring: it makes room at the first peer for orders
 *   that were passed over, and nobody has rung for these.
 * - A thread that accepts every class of work and finds none need not wake others: the queues are
 *   empty.
 * - A demand without an order counts as work of both ways, until a thread has ordered its file or
 *   left it to the daemon's loop (grant.c). */
#include "engine/waking.h"

#include "shared/doorbell.h"

void monarch_ring_one(struct pool *p, enum monarch_way way, uint32_t who) {
    if (who)
        monarch_bell_ring(&p->shared.clients->engine[way], 1, who);
}

/* Wakes all threads when the engine stops, even if a client has overwritten the count of sleeping
 * threads. */
void monarch_ring_all(struct pool *p, enum monarch_way way) {
    struct monarch_bell *bell = &p->shared.clients->engine[way];
    __atomic_fetch_add(&bell->rings, 1, __ATOMIC_SEQ_CST);
    monarch_futex_wake(&bell->rings);
}

void monarch_unlock_and_ring(struct pool *p) {
    uint32_t who[MONARCH_WAYS];
    for (int way = 0; way < MONARCH_WAYS; way++)
        who[way] = monarch_whom_it_needs(p, way);
    pthread_mutex_unlock(&p->lock);
    for (int way = 0; way < MONARCH_WAYS; way++)
        monarch_ring_one(p, way, who[way]);
}

int monarch_sleep(const struct worker *me, uint32_t seen, uint32_t roles, uint64_t until_ns) {
    struct pool *p = me->pool;
    struct monarch_bell *bell = &p->shared.clients->engine[me->way];
    int was_rung = 1;
    __atomic_fetch_add(&bell->sleeping, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&p->shared.stopping, __ATOMIC_SEQ_CST))
        was_rung = monarch_bell_sleep(bell, seen, roles, until_ns);
    __atomic_fetch_sub(&bell->sleeping, 1, __ATOMIC_SEQ_CST);
    return was_rung;
}
