#include "preload/fill/progress.h"

#include "preload/descriptors/track.h"
#include "preload/process/attributes.h"
#include "shared/sys.h"

#define PLACES 1024
#define BYTES ((1ULL << 40) - 1)
/* A program that has read 1 / PART of a file before its copy was there is taken to read the
 * rest. */
#define PART 8
#define STREAMS 64

/* What this process has read of files: entry << 40 | bytes. Two files in one slot reset each
 * other. */
static uint64_t progress[PLACES] SELDOM;

/* Streams on copies; a stream that finds another in its slot replaces it. */
static struct stream {
    const FILE *stream; /* atomic */
    struct session *session;
    uint64_t id;
} streams[STREAMS] SELDOM;

static_assert(MONARCH_MAX_FILES <= 1 << 24, "a number and its bytes share a word");

static const struct monarch_entry *entry_of(struct session *s, uint64_t id) {
    return s && s->clients && id < MONARCH_MAX_FILES ? monarch_entry_of(s, id) : NULL;
}

static int is_followed(const struct session *s) {
    return __atomic_load_n(&s->control->follow_reads, __ATOMIC_RELAXED) != 0;
}

/* The entry, or NULL if the daemon does not follow reads. */
static const struct monarch_entry *followed(struct session *s, uint64_t id) {
    return s && s->clients && is_followed(s) ? entry_of(s, id) : NULL;
}

/* Adds `n` to the bytes of the file that this process has read; returns the sum. */
static uint64_t add(uint64_t id, uint64_t n) {
    uint64_t *at = &progress[id % PLACES], old = __atomic_load_n(at, __ATOMIC_RELAXED), sum;
    do {
        sum = (old >> 40 == id ? old & BYTES : 0) + (n < BYTES ? n : BYTES);
        sum = sum < BYTES ? sum : BYTES;
    } while (!__atomic_compare_exchange_n(at, &old, id << 40 | sum, 0, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    return sum;
}

uint64_t monarch_progress(struct session *s, uint64_t id, uint64_t n) {
    const struct monarch_entry *e = entry_of(s, id);
    uint64_t sum = e && n ? add(id, n) : 0;
    if (sum && sum >= e->size && is_followed(s))
        monarch_set_bit(&s->clients->read, id);
    return sum;
}

uint64_t monarch_progress_of(uint64_t id) {
    uint64_t word = __atomic_load_n(&progress[id % PLACES], __ATOMIC_RELAXED);
    return word >> 40 == id ? word & BYTES : 0;
}

void monarch_progress_begin_again(uint64_t id) {
    uint64_t *at = &progress[id % PLACES], word = __atomic_load_n(at, __ATOMIC_RELAXED);
    if (word >> 40 == id)
        __atomic_compare_exchange_n(at, &word, id << 40, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void monarch_progress_unseen(struct session *s, uint64_t id, uint64_t n) {
    const struct monarch_entry *e = followed(s, id);
    if (e && add(id, n) >= e->size / PART)
        monarch_set_bit(&s->clients->read, id);
}

static struct stream *place_of(const FILE *stream) {
    return &streams[monarch_mix((uint64_t)stream) % STREAMS];
}

void monarch_progress_stream(struct session *s, uint64_t id, const FILE *stream) {
    struct stream *at = place_of(stream);
    if (!followed(s, id))
        return;
    __atomic_store_n(&at->stream, NULL, __ATOMIC_RELAXED);
    __atomic_store_n(&at->session, s, __ATOMIC_RELAXED);
    __atomic_store_n(&at->id, id, __ATOMIC_RELAXED);
    __atomic_store_n(&at->stream, stream, __ATOMIC_RELEASE);
}

/* A stream has read what lies before its descriptor's offset. Notes a file that it has read to the
 * end. */
static void look_at_offset(struct session *s, uint64_t id, int fd) {
    const struct monarch_entry *e = followed(s, id);
    if (e && e->size && sys_lseek(fd, 0, SEEK_CUR) == (long)e->size)
        monarch_set_bit(&s->clients->read, id);
}

void monarch_progress_end(const FILE *stream, int fd) {
    struct stream *at = place_of(stream);
    uint64_t w = monarch_tracked(fd);
    if (__builtin_expect(w != 0, 0)) {
        /* If the offset is shared, another process may be reading, and lseek would wait for that
         * read. */
        if (w & TRACK_OFFSET && !(w & TRACK_SHARED))
            look_at_offset(monarch_track_session(w), monarch_track_entry(w), fd);
    } else if (__builtin_expect(__atomic_load_n(&at->stream, __ATOMIC_ACQUIRE) == stream && fd >= 0,
                                0)) {
        struct session *s = __atomic_load_n(&at->session, __ATOMIC_RELAXED);
        uint64_t id = __atomic_load_n(&at->id, __ATOMIC_RELAXED);
        __atomic_store_n(&at->stream, NULL, __ATOMIC_RELAXED);
        look_at_offset(s, id, fd);
    }
}

/* --- how long the sources take ---------------------------------------------------------------- */

/* Most time that one open or read counts for [ns]: one that hung says nothing about the next. */
#define MOST_NS 1000000000ULL
/* The page cache serves an open, or a read of a small file, sooner than this [ns]. */
#define AT_HAND_NS 20000
/* A local disk serves an open, or a read of a small file, sooner than this [ns]. A file system that
 * asks a server for the open takes longer. */
#define OPEN_NEAR_NS 100000
#define READ_NEAR_NS 300000
/* If most of the last files came sooner than these limits, one file in this many is followed all
 * the same. */
#define FOLLOWED 256
/* The shares are moving averages, in which the last value has the weight 1 / SHARE_STEP. SHARE_ALL
 * is the share when all opens or reads were sooner than the limit. */
#define SHARE_ALL 1024U
#define SHARE_STEP 16U
/* The last value's weight in a mean: 1 / WEIGHT. */
#define WEIGHT 8

/* Statistics of this process's own opens and reads at the sources: their mean time, and the shares
 * of those that were sooner than the limits for the page cache and for a local disk. A thread that
 * waited for a processor makes a mean longer than it should be. Threads that write at the same time
 * lose one of their values, and children of a fork inherit them all. */
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
