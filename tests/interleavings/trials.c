/* Runs a trial of the preload library and the daemon in many orders of their steps (scheduler.h).
 *
 *   trials NAME BOUND MOST SHARE SHARES NTH ROOT
 *
 * Runs the trial NAME in orders with at most BOUND interrupts, and stops after about MOST orders.
 * An order with interrupts is run only if its first interrupt is at decision NTH, 2 NTH, 3 NTH etc.
 * These orders are divided into SHARES parts, and this process runs part SHARE. ROOT is the
 * directory with the files. Prints the number of runs, and counters of what happened in them.
 */
#include "trials.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "site.h"

static const struct trial *const all[] = {entry_trials,    descriptor_trials, filling_trials,
                                          handover_trials, waiting_trials,    claim_trials};

static const struct trial *find(const char *name) {
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (const struct trial *t = all[i]; t->name; t++)
            if (strcmp(t->name, name) == 0)
                return t;
    return NULL;
}

/* Prints counters of all runs as JSON. The counters show whether the threads have done the things
 * that the trial tests. */
static void print_counts(uint64_t runs) {
    struct monarch_stats sum = {0};
    for (unsigned i = 0; i < MONARCH_STAT_SLOTS; i++) {
        const struct monarch_stats *s = &site.clients->stats[i];
        sum.hits += s->hits;
        sum.misses += s->misses;
        sum.promotions += s->promotions;
        sum.waits += s->waits;
        sum.bytes_while_filling += s->bytes_while_filling;
    }
    printf("{\"runs\": %lu, \"hits\": %lu, \"misses\": %lu, \"promotions\": %lu, "
           "\"waits\": %lu, \"bytes_while_filling\": %lu, \"handed\": %lu, \"opened_again\": %lu, "
           "\"reads_of_handed\": %lu}\n",
           runs, sum.hits, sum.misses, sum.promotions, sum.waits, sum.bytes_while_filling,
           times_met(HANDED_OVER), times_met(OPENED_AGAIN), times_met(READ_BY_HANDED));
}

int main(int argc, char **argv) {
    const struct trial *trial = argc == 8 ? find(argv[1]) : NULL;
    if (!trial)
        return 2;
    /* One arena of malloc suffices, because only one thread runs at a time. */
    mallopt(M_ARENA_MAX, 1);
    set_up(argv[7]);
    take_share((unsigned)atoi(argv[4]), (unsigned)atoi(argv[5]), (unsigned)atoi(argv[6]));
    print_counts(explore(trial, restore, (unsigned)atoi(argv[2]), strtoull(argv[3], NULL, 10)));
    return 0;
}
