#include "preload/fill/latency.h"

#include "preload/process/attributes.h"
#include "shared/sys.h"

/* Most that one open or read counts for [ns]: one that hung says nothing of the next. */
#define MOST_NS 1000000000ULL
/* The page cache serves an open, or a read of a small file, sooner than this [ns]. */
#define AT_HAND_NS 20000
/* A local disk serves an open, or a read of a small file, sooner than this [ns]. A file system that
 * asks a server for the open takes longer. */
#define OPEN_NEAR_NS 100000
#define READ_NEAR_NS 300000
/* Where most of the last files were sooner than that, one file in so many is followed all the
 * same. */
#define FOLLOWED 256
/* The share that one file adds if it was sooner, and takes away if it was not: SHARE_ALL /
 * SHARE_STEP. */
#define SHARE_ALL 1024U
#define SHARE_STEP 16U
/* The last value's weight in a mean: 1 / WEIGHT. */
#define WEIGHT 8

/* Statistics of this process's own opens and reads at the sources: their mean, and the shares of
 * those that were sooner than the page cache's and a local disk's limit. A thread that waited for a
 * processor makes a mean longer than it should be. Threads that write at the same time lose one of
 * their values, and children of a fork inherit them all. */
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
    uint64_t took = monarch_now_ns() - since_ns,
             old = __atomic_load_n(&t->mean_ns, __ATOMIC_RELAXED);
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
