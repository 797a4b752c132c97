#include "shared/doorbell.h"

/* Counts in `wakes` how often the readers of each demand were woken. */
static int woken(uint32_t *futex);
#define monarch_futex_wake woken
#include "clients/demands.c"

#include "checks.h"

static struct monarch_engine *e;
static struct monarch_clients *m;

static int wakes[MONARCH_DEMANDS];

static int woken(uint32_t *futex) {
    ptrdiff_t slot = (uint64_t *)futex - m->demand;
    CHECK(slot >= 0 && slot < MONARCH_DEMANDS && (void *)futex == &m->demand[slot]);
    return ++wakes[slot];
}

static void make(void) {
    e = make_engine(4096);
    m = e->clients;
}

static void demand(int slot, uint64_t entry, uint64_t unit) {
    m->demand[slot] = monarch_demand(entry, unit, 2, 0);
}

/* An answer for units of a file ends all demands for these units, whichever slots the demands are
 * in. Other demands stay. */
TEST(an_answer_reaches_the_demands_for_its_units) {
    make();
    for (uint64_t first = 0; first < 3; first++)
        for (uint64_t count = 0; count < 4; count++) {
            for (int i = 0; i < 6; i++)
                demand(i, 7, (uint64_t)i);
            demand(MONARCH_DEMANDS - 1, 7, first + count - 1);
            demand(100, 8, first);
            memset(wakes, 0, sizeof wakes);
            monarch_answer(m, 7, first, count);
            for (int i = 0; i < MONARCH_DEMANDS; i++)
                SAME(wakes[i], m->demand[i] == 0 && (i < 6 || (i > 100 && count)) &&
                                   (i < 6 || i == MONARCH_DEMANDS - 1));
            for (uint64_t i = 0; i < 6; i++)
                SAME(m->demand[i] == 0, i >= first && i < first + count);
            SAME(m->demand[MONARCH_DEMANDS - 1] == 0, count > 0);
            CHECK(m->demand[100]);
            m->demand[MONARCH_DEMANDS - 1] = 0;
        }
    free_engine(e);
}

/* A demand stays while its file is wanted, requested or being filled. Demands for all other files
 * are answered. */
TEST(demands_stand_while_their_file_may_come) {
    make();
    struct monarch_catalog *c = make_catalog(64);
    for (int i = 0; i < 12; i++) {
        char name[] = {(char)('a' + i), 0};
        add_entry(c, name, (struct monarch_entry){.kind = MONARCH_FILE})->word =
            monarch_word((unsigned)i % 6, 0, 0, 0);
        if (i >= 6)
            monarch_set_bit(&m->wanted, (uint64_t)i);
        demand(MONARCH_DEMANDS - 1 - i, (uint64_t)i, 0);
    }
    demand(0, 12, 0); /* no such entry */
    int stand = 0;
    uint64_t waiting = monarch_answer_settled(m, c);
    for (unsigned i = 0; i < 12; i++) {
        int stands = i % 6 == MONARCH_WANTED || i % 6 == MONARCH_FILLING ||
                     (i % 6 == MONARCH_ABSENT && i >= 6);
        SAME(m->demand[MONARCH_DEMANDS - 1 - i] != 0, stands);
        SAME(wakes[MONARCH_DEMANDS - 1 - i], !stands);
        SAME(monarch_is_requested(m, i), i >= 6);
        stand += stands;
    }
    SAME(m->demand[0], 0);
    SAME(waiting, stand);
    SAME(monarch_is_requested(m, MONARCH_MAX_FILES), 0);
    free(c);
    free_engine(e);
}
