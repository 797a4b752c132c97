#define _GNU_SOURCE
#include "preload/fill/latency.h"

#include "preload/process/attributes.h"
#include "shared/sys.h"

/* An open or a read counts for no more [ns]: one that hung says nothing of the next. */
#define MOST_NS 1000000000ULL
/* The page cache gives an open, and a read of a small file, sooner than this [ns]. */
#define AT_HAND_NS 20000
/* A local disk gives an open, and a read of a small file, sooner than this. A file system that asks
 * a server for the open takes longer for that [ns]. */
#define OPEN_NEAR_NS 100000
#define READ_NEAR_NS 300000
/* Where most of the last ones were sooner, one file in so many is followed all the same. */
#define FOLLOWED 256
/* Of SHARE_ALL, what is added for one that was sooner, and taken away for one that was not. */
#define SHARE_ALL 1024U
#define SHARE_STEP 16U
/* Of the means, the last value counts for so much (1 / WEIGHT). */
#define WEIGHT 8

/* Of this process's own opens and reads at the sources: their mean, and the shares of those that
 * were sooner than the page cache's and a local disk's limit. A thread that waited for a processor
 * makes a mean long, and says little. Threads that write at the same time lose one of their values,
 * and children of a fork inherit them. */
static struct taken {
    uint64_t mean_ns;
    uint32_t at_hand, near;
} opens SELDOM, reads SELDOM;

static void note_share(uint32_t *share, int is_sooner) {
    uint32_t now = __atomic_load_n(share, __ATOMIC_RELAXED);
    now += (is_sooner ? SHARE_ALL / SHARE_STEP : 0) - now / SHARE_STEP;
    __atomic_store_n(share, now, __ATOMIC_RELAXED);
}

static void note(struct taken *t, uint64_t near_ns, uint64_t since_ns) {
    uint64_t took = sys_now_ns() - since_ns, old = __atomic_load_n(&t->mean_ns, __ATOMIC_RELAXED);
    took = took < MOST_NS ? took : MOST_NS;
    uint64_t now = old ? old - old / WEIGHT + took / WEIGHT : took;
    __atomic_store_n(&t->mean_ns, now ? now : 1, __ATOMIC_RELAXED);
    note_share(&t->at_hand, took < AT_HAND_NS);
    note_share(&t->near, took < near_ns);
}

void monarch_note_source_open(uint64_t since_ns) { note(&opens, OPEN_NEAR_NS, since_ns); }
void monarch_note_source_read(uint64_t since_ns) { note(&reads, READ_NEAR_NS, since_ns); }

uint64_t monarch_latency_ns(void) {
    uint64_t open = __atomic_load_n(&opens.mean_ns, __ATOMIC_RELAXED);
    return open ? open + __atomic_load_n(&reads.mean_ns, __ATOMIC_RELAXED) : 0;
}

static int are_most(const uint32_t *of_opens, const uint32_t *of_reads) {
    return __atomic_load_n(of_opens, __ATOMIC_RELAXED) > SHARE_ALL / 2 &&
           __atomic_load_n(of_reads, __ATOMIC_RELAXED) > SHARE_ALL / 2;
}

int monarch_source_is_at_hand(void) {
    static uint32_t passed SELDOM;
    return are_most(&opens.at_hand, &reads.at_hand) &&
           __atomic_fetch_add(&passed, 1, __ATOMIC_RELAXED) % FOLLOWED != 0;
}

int monarch_source_is_near(void) {
    static uint32_t passed SELDOM;
    return are_most(&opens.near, &reads.near) && !are_most(&opens.at_hand, &reads.at_hand) &&
           __atomic_fetch_add(&passed, 1, __ATOMIC_RELAXED) % FOLLOWED != 0;
}
