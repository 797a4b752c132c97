#include "shared/claims.h"

#include "shared/clock.h"

/* --- the program's side ----------------------------------------------------------------------- */

int monarch_is_in_transit(uint64_t claim, uint64_t now_ns) {
    return claim & MONARCH_CLAIM_HANDED && monarch_claim_holds(claim, now_ns);
}

void monarch_claim_file(struct monarch_clients *m, uint64_t id) {
    uint64_t *at = monarch_claim_at(m, id), now = monarch_now_ns();
    uint64_t seen = __atomic_load_n(at, __ATOMIC_RELAXED);
    if (!monarch_is_in_transit(seen, now))
        __atomic_compare_exchange_n(at, &seen, monarch_claim_of(id, 0, now), 0, __ATOMIC_SEQ_CST,
                                    __ATOMIC_RELAXED);
}

uint64_t monarch_begin_claim(struct monarch_clients *m, uint64_t id) {
    uint64_t *at = monarch_claim_at(m, id), now = monarch_now_ns();
    uint64_t seen = __atomic_load_n(at, __ATOMIC_SEQ_CST);
    uint64_t claim = monarch_claim_of(id, MONARCH_CLAIM_HANDED, now);
    while (!monarch_is_in_transit(seen, now))
        if (__atomic_compare_exchange_n(at, &seen, claim, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            return claim;
    return 0;
}

void monarch_cancel_claim(struct monarch_clients *m, uint64_t id, uint64_t claim) {
    uint64_t *at = monarch_claim_at(m, id), seen = claim;
    while ((seen & ~MONARCH_CLAIM_RECALLED) == claim &&
           !__atomic_compare_exchange_n(at, &seen, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
}

void monarch_give_up_claim(struct monarch_clients *m, uint64_t id) {
    uint64_t claim = __atomic_load_n(monarch_claim_at(m, id), __ATOMIC_RELAXED);
    if (monarch_claim_names(claim, id) && !(claim & MONARCH_CLAIM_HANDED))
        monarch_cancel_claim(m, id, claim);
}

/* --- the daemon's side ------------------------------------------------------------------------ */

static int is_claimed(const struct monarch_clients *m, uint64_t id, uint64_t now_ns) {
    uint64_t claim = __atomic_load_n(&m->claim[id % MONARCH_CLAIMS], __ATOMIC_RELAXED);
    return monarch_claim_names(claim, id) && monarch_claim_holds(claim, now_ns);
}

/* A program claims a file under the number of its entry, or under monarch_unmet(ino) if it has
 * found no entry. So both numbers are checked. */
int monarch_is_being_read(const struct monarch_clients *m, uint64_t id, uint64_t ino,
                          uint64_t now_ns) {
    return is_claimed(m, id, now_ns) || is_claimed(m, monarch_unmet(ino), now_ns);
}

void monarch_end_claim(struct monarch_clients *m, uint64_t id) {
    uint64_t *at = monarch_claim_at(m, id), claim = __atomic_load_n(at, __ATOMIC_SEQ_CST);
    while (monarch_claim_names(claim, id) && claim & MONARCH_CLAIM_HANDED &&
           !__atomic_compare_exchange_n(at, &claim, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
}

int monarch_is_recalled(const struct monarch_clients *m, uint64_t id, uint64_t now_ns) {
    uint64_t claim = __atomic_load_n(&m->claim[id % MONARCH_CLAIMS], __ATOMIC_SEQ_CST);
    return !monarch_claim_names(claim, id) || claim & MONARCH_CLAIM_RECALLED ||
           !monarch_claim_holds(claim, now_ns);
}
