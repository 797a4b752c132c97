/* Tests engine/entries.c: queues of orders, the search for orders and fills by entry, slots, and
 * claims of units. */
#include "engine/entries.c"

#include "checks.h"

/* Returns the ids of the queue's orders as a string, from first to last. Checks the links between
 * the orders. */
static const char *ids_of(const struct queue *q) {
    static char text[64];
    uint64_t n = 0;
    const struct job *last = NULL;
    text[0] = 0;
    for (const struct job *job = q->first; job; last = job, job = job->next, n++) {
        CHECK(job->before == last && job->queue == q);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%llu ",
                 (unsigned long long)job->result.id);
    }
    CHECK(q->last == last && q->length == n);
    return text;
}

static const char *fills_of(const struct pool *p) {
    static char text[64];
    text[0] = 0;
    for (const struct fill *f = p->fills; f; f = f->next)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%llu ",
                 (unsigned long long)f->job->result.id);
    return text;
}

#define READS(text, right)                            \
    do {                                              \
        if (strcmp(text, right) != 0)                 \
            die("\"%s\" is not \"%s\"", text, right); \
    } while (0)

/* A queue is first in, first out. An order can be put first, and can leave from any position. */
TEST(orders_leave_a_queue_in_their_order) {
    struct queue q = {0};
    struct job jobs[5];
    for (uint64_t i = 0; i < 5; i++)
        jobs[i] = (struct job){.result.id = i};
    CHECK(!monarch_pop(&q));
    monarch_push_first(&q, &jobs[0]);
    READS(ids_of(&q), "0 ");
    monarch_push(&q, &jobs[1]);
    monarch_push(&q, &jobs[2]);
    monarch_push_first(&q, &jobs[3]);
    monarch_push(&q, &jobs[4]);
    READS(ids_of(&q), "3 0 1 2 4 ");
    monarch_take_out(&jobs[1]);
    CHECK(!jobs[1].queue);
    READS(ids_of(&q), "3 0 2 4 ");
    monarch_take_out(&jobs[3]);
    monarch_take_out(&jobs[4]);
    READS(ids_of(&q), "0 2 ");
    CHECK(monarch_pop(&q) == &jobs[0] && monarch_pop(&q) == &jobs[2] && !monarch_pop(&q));
    READS(ids_of(&q), "");
    monarch_push(&q, &jobs[1]);
    READS(ids_of(&q), "1 ");
}

/* While an order is queued, it is found by its entry. If several orders have the same entry,
 * monarch_order_of finds the last one, and monarch_queued_fill finds the FILL. Entries in the
 * same hash bucket are told apart. */
TEST(an_order_is_found_by_its_entry) {
    struct pool *p = calloc(1, sizeof *p);
    const uint64_t ids[] = {7, 7 + MONARCH_BUCKETS, 7, 7 + 2 * MONARCH_BUCKETS, 7};
    const uint32_t kinds[] = {MONARCH_FILL, MONARCH_FILL, MONARCH_CHECK, MONARCH_CHECK,
                              MONARCH_DROP};
    struct job jobs[5];
    for (int i = 0; i < 5; i++) {
        jobs[i] = (struct job){.result.id = ids[i], .result.kind = kinds[i]};
        SAME(monarch_is_awaited(&jobs[i]), i < 4);
        monarch_push(&p->urgent, &jobs[i]);
        if (i < 4)
            monarch_remember(p, &jobs[i]);
    }
    CHECK(monarch_order_of(p, 7) == &jobs[2] && monarch_queued_fill(p, 7) == &jobs[0]);
    CHECK(monarch_order_of(p, ids[1]) == &jobs[1] && monarch_queued_fill(p, ids[1]) == &jobs[1]);
    CHECK(monarch_order_of(p, ids[3]) == &jobs[3] && !monarch_queued_fill(p, ids[3]));
    CHECK(!monarch_has_order(p, 8) && !monarch_has_order(p, 7 + 3 * MONARCH_BUCKETS));
    monarch_unqueue(p, &jobs[4]); /* a DROP is never remembered; other orders of its entry stay */
    SAME(monarch_has_order(p, 7), 1);
    monarch_unqueue(p, &jobs[2]);
    CHECK(monarch_order_of(p, 7) == &jobs[0]);
    monarch_unqueue(p, &jobs[0]);
    CHECK(!monarch_has_order(p, 7) && monarch_has_order(p, ids[1]) && p->urgent.length == 2);
    free(p);
}

/* An order whose first peer is not -1 gets its bytes from a peer. */
TEST(an_order_comes_from_a_peer_or_a_source) {
    struct job job = {.peer = {-1, 4}};
    SAME(monarch_origin_of(&job), MONARCH_FROM_SOURCE);
    job.peer[0] = 0;
    SAME(monarch_origin_of(&job), MONARCH_FROM_PEER);
}

/* Freeing an order's slot a second time does nothing. A free slot's word is 0, so readers see no
 * fill in it. */
TEST(a_slot_is_freed_once) {
    struct pool *p = calloc(1, sizeof *p);
    p->shared.fills = calloc(1, sizeof *p->shared.fills);
    struct job job = {.slot = 0};
    p->shared.fills->word[0] = 5;
    for (int i = 0; i < 2; i++) {
        monarch_free_slot(p, &job);
        CHECK(p->free_slots == 1 && p->slot[0] == 0 && job.slot == -1);
        SAME(p->shared.fills->word[0], 0);
    }
    free(p->shared.fills);
    free(p);
}

/* Each unit of a fill has its own bit, which says whether a thread has claimed the unit. */
TEST(units_are_claimed_one_by_one) {
    const uint64_t units[] = {0, 1, 31, 32, 63, 64, 127};
    for (int k = 0; k < 7; k++) {
        uint64_t claimed[2] = {0};
        struct fill f = {.claimed = claimed};
        monarch_claim(&f, units[k]);
        for (uint64_t u = 0; u < 128; u++)
            SAME(monarch_is_claimed(&f, u), u == units[k]);
    }
}

/* Fills stay in the order in which they were added. A fill at any position is found by its entry
 * until the fill is removed. monarch_move_last moves a fill to the end; another fill may move to
 * the position that becomes free. */
TEST(fills_are_kept_in_their_order) {
    struct pool *p = calloc(1, sizeof *p);
    struct job jobs[4];
    struct fill fills[4] = {0}, other = {0};
    for (uint64_t i = 0; i < 4; i++) {
        jobs[i].result.id = i < 3 ? i * MONARCH_BUCKETS : 1;
        fills[i].job = &jobs[i];
        monarch_add_fill(p, &fills[i]);
    }
    other.job = &jobs[0];
    READS(fills_of(p), "0 1024 2048 1 ");
    for (uint64_t i = 0; i < 4; i++)
        CHECK(monarch_fill_of(p, jobs[i].result.id) == &fills[i]);
    CHECK(!monarch_fill_of(p, 3 * MONARCH_BUCKETS));
    monarch_move_last(p, &fills[0], &fills[0]);
    READS(fills_of(p), "1024 2048 1 0 ");
    monarch_move_last(p, &fills[1], &fills[3]);
    READS(fills_of(p), "1 2048 0 1024 ");
    monarch_move_last(p, &fills[0], &fills[2]);
    READS(fills_of(p), "1 2048 1024 0 ");
    monarch_move_last(p, &fills[2], &fills[1]);
    READS(fills_of(p), "1 1024 0 2048 ");
    monarch_move_last(p, &fills[2], &fills[2]);
    READS(fills_of(p), "1 1024 0 2048 ");
    monarch_remove_fill(p, &other); /* it was never added */
    READS(fills_of(p), "1 1024 0 2048 ");
    monarch_remove_fill(p, &fills[1]);
    READS(fills_of(p), "1 0 2048 ");
    CHECK(!monarch_fill_of(p, MONARCH_BUCKETS) && monarch_fill_of(p, 0) == &fills[0]);
    monarch_remove_fill(p, &fills[2]);
    monarch_remove_fill(p, &fills[3]);
    READS(fills_of(p), "0 ");
    monarch_remove_fill(p, &fills[0]);
    CHECK(!p->fills && !monarch_fill_of(p, 0) && !monarch_fill_of(p, 1));
    free(p);
}
