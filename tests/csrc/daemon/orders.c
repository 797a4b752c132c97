#include "engine/orders.c"
#undef LARGEST

#include "checks.h"
#include "engine/entries.h"

static struct pool *p;

static void make(void) {
    p = calloc(1, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
}

static void done(void) { free(p); }

/* A queued fill can be withdrawn, unless a program uses its file, or has handed over a descriptor
 * of the file. A withdrawn fill is reported as ABANDONED. */
TEST(only_fills_that_no_program_uses_are_withdrawn) {
    make();
    struct job jobs[5];
    const uint64_t ids[] = {0, 1, 2, 3, 4, 5};
    for (uint64_t i = 0; i < 5; i++) {
        jobs[i] = (struct job){.result.id = i, .handed = -1, .peer = {-1}};
        monarch_push(&p->normal[MONARCH_FROM_SOURCE], &jobs[i]);
        monarch_remember(p, &jobs[i]);
    }
    jobs[1].result.in_use = 1;
    jobs[2].is_kept = 1;
    jobs[3].handed = 0;
    SAME(monarch_engine_withdraw((struct monarch_engine *)p, 6, ids), 2);
    SAME(p->normal[MONARCH_FROM_SOURCE].length, 3);
    CHECK(p->done.first == &jobs[0] && p->done.last == &jobs[4] && p->done.length == 2);
    for (uint64_t i = 0; i < 5; i++) {
        SAME(monarch_has_order(p, i), i % 4 != 0);
        SAME(jobs[i].result.status, i % 4 ? 0 : MONARCH_ABANDONED);
    }
    done();
}

/* A file may have two holders. The holder with fewer orders is asked first. If both have equally
 * many orders, the number of the file decides: each holder comes first for every second file. */
TEST(the_holder_with_fewer_orders_is_asked_first) {
    make();
    struct monarch_home homes[4];
    int32_t asked[MONARCH_ASKED];
    p->grant.home = homes;
    p->grant.homes = 4;
    for (uint64_t id = 0; id < 4; id++)
        for (uint32_t first = 0; first < 3; first++)
            for (uint16_t giver = 0; giver < 9; giver++) {
                homes[id] = (struct monarch_home){
                    .storage = MONARCH_IN_TIERS, .asked_first = 3, .asked_then = 7, .giver = giver};
                p->asked[3] = first;
                p->asked[7] = 1;
                SAME(find_home(p, id, asked), MONARCH_IN_TIERS);
                int swaps = first > 1 || (first == 1 && id % 2);
                int has_it[2] = {giver == (swaps ? 8 : 4), giver == (swaps ? 4 : 8)};
                SAME(asked[0], (swaps ? 7 : 3) + has_it[0] * MONARCH_HAS_IT);
                SAME(asked[1], (swaps ? 3 : 7) + has_it[1] * MONARCH_HAS_IT);
            }
    homes[1].asked_then = -1;
    find_home(p, 1, asked);
    CHECK(asked[0] % MONARCH_HAS_IT == 3 && asked[1] == -1);
    SAME(find_home(p, 4, asked), MONARCH_NOT_TOLD);
    homes[1].storage = MONARCH_NOT_TOLD;
    SAME(find_home(p, 1, asked), MONARCH_NOT_TOLD);
    CHECK(asked[0] == -1 && asked[1] == -1);
    done();
}

/* If a single peer has sent all bytes of a copy, this peer is noted as the giver of the file. */
TEST(a_giver_is_remembered) {
    make();
    struct monarch_home homes[2] = {{.giver = 9}, {.giver = 9}};
    p->grant.home = homes;
    p->grant.homes = 2;
    struct monarch_result r = {.id = 1, .giver = 0, .status = MONARCH_TIER_FULL};
    monarch_note_giver(p, &r);
    SAME(homes[1].giver, 9);
    r.status = MONARCH_DONE;
    monarch_note_giver(p, &r);
    CHECK(homes[1].giver == 1 && homes[0].giver == 9);
    r.giver = -1;
    monarch_note_giver(p, &r);
    SAME(homes[1].giver, 1);
    r.id = 2;
    r.giver = 5;
    monarch_note_giver(p, &r); /* ignored: the grant has no home for this file */
    done();
}
