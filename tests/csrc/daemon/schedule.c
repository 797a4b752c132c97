#include "engine/schedule.c"

#include "checks.h"

static struct pool *p;

static void make(void) { p = calloc(1, sizeof *p + 4 * sizeof *p->worker); }
static void done(void) { free(p); }

/* A peer's share of the threads is twice the number of free threads. The peer may get another
 * thread only while it has fewer threads than that. Work for which a reader waits may exceed the
 * share while more than KEPT_FREE threads are free. A thread that already works for the peer may
 * stay. Orders for the sources have no limit of this kind. */
TEST(a_peer_gets_its_share_of_the_threads) {
    make();
    struct job of_peer = {.peer = {3}}, of_source = {.peer = {-1}};
    for (int threads = 0; threads < 20; threads++)
        for (int at = 0; at <= threads; at++)
            for (int others = 0; at + others <= threads; others++) {
                int left = threads - at - others;
                p->peer_threads = threads;
                p->at[3] = at;
                p->away = at + others;
                SAME(can_ask(p, -1, &of_peer), at < 2 * left);
                SAME(can_ask(p, 4, &of_peer), at < 2 * left);
                SAME(can_ask(p, 3, &of_peer), 1);
                SAME(can_ask(p, -1, &of_source), 1);
                SAME(can_serve(p, -1, &of_peer), at < 2 * left || left > KEPT_FREE);
                SAME(can_serve(p, 3, &of_peer), 1);
            }
    done();
}

/* `width` is the number of threads that may do work for which no reader waits. No peer gets more
 * than its share of this number. */
TEST(a_peer_gets_its_share_of_the_width) {
    make();
    struct job of_peer = {.peer = {3}}, of_source = {.peer = {-1}};
    p->peer_threads = 100;
    for (uint32_t width = 1; width < 12; width++)
        for (uint32_t at = 0; at <= width; at++)
            for (uint32_t others = 0; at + others < width; others++) {
                p->width[MONARCH_FROM_PEER] = width;
                p->unasked_at[3] = at;
                p->unasked[MONARCH_FROM_PEER] = at + others;
                /* If n threads stay free, the peer may have at most 2n + 1 threads. */
                SAME(can_ask_unasked(p, &of_peer), at + 1 <= 2 * (width - at - others - 1) + 1);
                SAME(can_ask_unasked(p, &of_source), 1);
            }
    p->unasked_at[3] = p->unasked[MONARCH_FROM_PEER] = 0;
    /* No thread of the peer counts towards `width`, but the peer has more than its share of all
     * threads. */
    p->at[3] = p->away = 67;
    SAME(can_ask_unasked(p, &of_peer), 0);
    done();
}

/* Each thread is counted for at most one peer: the one that it works for now. */
TEST(a_thread_counts_for_its_peer) {
    make();
    struct worker w = {.peer = -1};
    const int peers[] = {3, 3, 5, -1, -1, 0};
    for (int i = 0; i < 6; i++) {
        go_to(p, &w, peers[i]);
        SAME(w.peer, peers[i]);
        SAME(p->away, peers[i] >= 0);
        for (int k = 0; k < 8; k++)
            SAME(p->at[k], k == peers[i]);
    }
    done();
}

/* MONARCH_SLOTS_OF_SOURCE slots are reserved for fills from the sources. A fill from a peer gets a
 * slot only if more slots than these are free. */
TEST(slots_are_reserved_for_the_sources) {
    make();
    for (unsigned n = 0; n < MONARCH_SLOTS_OF_SOURCE + 3; n++) {
        p->free_slots = n;
        SAME(has_slot(p, MONARCH_FROM_SOURCE), n > 0);
        SAME(has_slot(p, MONARCH_FROM_PEER), n > MONARCH_SLOTS_OF_SOURCE);
    }
    done();
}

/* Orders whose peer may not be asked now are set aside, in one queue for each peer. first_late
 * returns the first of these orders whose peer may be asked again. It forgets peers without
 * orders. */
TEST(orders_that_are_set_aside_come_first_again) {
    make();
    p->peer_threads = 10;
    p->width[MONARCH_FROM_PEER] = 10;
    struct job jobs[5];
    const int peers[] = {7, 4, 7, 9, 4};
    for (int i = 0; i < 5; i++) {
        jobs[i] = (struct job){.peer = {peers[i]}};
        monarch_push(&p->normal[MONARCH_FROM_PEER], &jobs[i]);
    }
    for (int i = 0; i < 5; i++)
        put_aside(&p->late[0], &jobs[i]);
    SAME(p->normal[MONARCH_FROM_PEER].length, 0);
    SAME(p->late[0].peers, 3);
    SAME(p->late[0].of[7].length, 2);
    p->unasked_at[7] = 100; /* peer 7 has its whole share already */
    CHECK(first_late(p, 0) == &jobs[1]);
    monarch_take_out(&jobs[1]);
    CHECK(first_late(p, 0) == &jobs[4]);
    monarch_take_out(&jobs[4]);
    CHECK(first_late(p, 0) == &jobs[3]);
    SAME(p->late[0].peers, 2);
    monarch_take_out(&jobs[3]);
    CHECK(!first_late(p, 0));
    p->unasked_at[7] = 0;
    CHECK(first_late(p, 0) == &jobs[0]);
    CHECK(!first_late(p, 1));
    done();
}

/* Every second thread for the sources also reads ahead. Threads for peers never do. */
TEST(half_of_the_threads_read_ahead) {
    for (uint32_t number = 0; number < 6; number++) {
        struct worker w = {.number = number, .origin = MONARCH_FROM_SOURCE};
        SAME(monarch_roles_of(&w), MONARCH_DOES_ALL | (number % 2 ? MONARCH_READS_AHEAD : 0));
        w.origin = MONARCH_FROM_PEER;
        SAME(monarch_roles_of(&w), MONARCH_DOES_ALL);
    }
}
