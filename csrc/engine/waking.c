/* Decides which copying threads are woken, and when a copying thread sleeps.
 *
 * A thread is woken only for work that it can do, and no work is left waiting while a thread that
 * could do it sleeps. The rules:
 *
 *   - Work is added under the pool's lock. Then the bell of its way is rung, which changes the
 *     bell's word and wakes one thread that could do the work. A thread reads the word before it
 *     looks for work, and sleeps only if the word is still the same. So a thread that looked just
 *     before the work was added does not fall asleep.
 *   - A thread takes only one piece of the work that it finds. If sleeping threads could do some of
 *     the remaining work, the thread wakes one of them, but does not change the word: the thread
 *     that has added this work rings the bell for it. If that ring has come already, no thread that
 *     is awake falls asleep without seeing the work. If that ring is still to come, it wakes one
 *     more thread. There is one exception: a thread whose work no longer asks the same peer rings
 *     the bell itself. The peer that the thread has left has room again for orders that were set
 *     aside, and no other ring will come for these orders.
 *   - A thread that has all roles of its way and finds no work need not wake others, because there
 *     is nothing that they could do.
 *   - A demand whose file has no order counts as work of both ways, until a thread has ordered a
 *     fill of the file or left the file to the daemon's loop (grant.c). */
#include "engine/waking.h"

#include "shared/doorbell.h"

void monarch_ring_one(struct pool *p, enum monarch_way way, uint32_t who) {
    if (who)
        monarch_bell_ring(&p->shared.clients->engine[way], 1, who);
}

/* Wakes all threads because the engine stops. Ignores the count of sleeping threads, because a
 * client may have overwritten it. */
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
