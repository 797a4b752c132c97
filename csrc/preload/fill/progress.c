#include "preload/fill/progress.h"

#include "preload/descriptors/track.h"
#include "preload/process/attributes.h"
#include "shared/sys.h"

#define PLACES 1024
#define BYTES ((1ULL << 40) - 1)
/* A promotion puts the copy in the place of a descriptor's file. From then on, the library does
 * not see the descriptor's reads. If at least 1 / PART of the file was read by then, the library
 * reports the file as read to its end. */
#define PART 8
#define STREAMS 64

/* Each slot counts how many bytes of one file this process has read: entry << 40 | bytes. If two
 * files share a slot, a read of one resets the count of the other. */
static uint64_t progress[PLACES] SELDOM;

/* The open streams that read copies. If two streams share a slot, the later stream replaces the
 * earlier stream. */
static struct stream {
    const FILE *stream; /* atomic */
    struct session *session;
    uint64_t id;
} streams[STREAMS] SELDOM;

static_assert(MONARCH_MAX_FILES <= 1 << 24, "an entry's number must fit into 24 bits");

static const struct monarch_entry *entry_of(struct session *s, uint64_t id) {
    return s && s->clients && id < MONARCH_MAX_FILES ? monarch_entry_of(s, id) : NULL;
}

static int is_followed(const struct session *s) {
    return __atomic_load_n(&s->control->follow_reads, __ATOMIC_RELAXED) != 0;
}

/* Returns the entry with the number `id`. Returns NULL if the daemon does not need to know which
 * files were read to their end. */
static const struct monarch_entry *followed(struct session *s, uint64_t id) {
    return s && s->clients && is_followed(s) ? entry_of(s, id) : NULL;
}

/* Adds `n` to the number of bytes that this process has read of the file. Returns the sum. */
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

/* If the stream's offset is at the end of the file, reports the file to the daemon as read to its
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
        /* The offset of a shared descriptor is not checked. Another process may be reading through
         * the same open file, and lseek would wait for that read. */
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

/* For a descriptor of an earlier daemon's session, `s` is monarch_waiting, which has no `clients`.
 * The bytes are then not counted. */
void monarch_count_source(struct session *s, uint64_t n_bytes) {
    if (!s->clients)
        return;
    __atomic_fetch_add(&monarch_my_stats(s)->source_bytes_read_by_programs, n_bytes,
                       __ATOMIC_RELAXED);
}

/* --- how long the sources take ---------------------------------------------------------------- */

/* Longest duration [ns] that is recorded for an open or a read. A call that takes longer has
 * probably hung, and says little about the duration of the next call. */
#define MOST_NS 1000000000ULL
/* If an open, or a read of a small file, takes less time than this [ns], it is assumed to be
 * served from the page cache. */
#define AT_HAND_NS 20000
/* Limits for a local disk [ns]. On such a disk, an open takes less than OPEN_NEAR_NS, and a read
 * of a small file takes less than READ_NEAR_NS. An open that asks a server takes longer. */
#define OPEN_NEAR_NS 100000
#define READ_NEAR_NS 300000
/* In each thread, one in FOLLOWED calls of monarch_source_is_at_hand and monarch_source_is_near
 * returns 0 even if the sources are fast. After a result of 0, the library measures the file's
 * reads. So the statistics stay up to date. */
#define FOLLOWED 256
/* The fields at_hand and near of struct taken are fractions of the recent calls, in units of 1 /
 * SHARE_ALL. */
#define SHARE_ALL 1024U
/* Each fraction is a moving average, in which the latest call has the weight 1 / SHARE_STEP. */
#define SHARE_STEP 16U
/* mean_ns in struct taken is a moving average, in which the latest call has the weight 1 /
 * WEIGHT. */
#define WEIGHT 8

/* Statistics of this process's own opens and reads at the sources. A call's duration includes its
 * waits for a processor, so the mean may be too large. If two threads store a value at the same
 * time, one of the two values is lost. Children of a fork inherit the statistics.
 * mean_ns : mean duration of a call
 * at_hand : fraction of the calls that took less time than the limit for the page cache
 * near : fraction of the calls that took less time than the limit for a local disk */
static struct taken {
    uint64_t mean_ns;
    uint32_t at_hand, near;
} opens SELDOM, reads SELDOM;

/* The next two functions store a value only if necessary, because each store removes the cache line
 * from the caches of the other processors. */
static void note_share(uint32_t *share, int is_sooner) {
    uint32_t old = __atomic_load_n(share, __ATOMIC_RELAXED);
    uint32_t now = old + (is_sooner ? SHARE_ALL / SHARE_STEP : 0) - old / SHARE_STEP;
    if (now != old)
        __atomic_store_n(share, now, __ATOMIC_RELAXED);
}

/* While the mean and the new duration are both below AT_HAND_NS, does not update the mean. With
 * such fast sources, no open waits for a copy, so the exact mean is not needed. */
static void note_mean(uint64_t *mean_ns, uint64_t took_ns) {
    uint64_t old = __atomic_load_n(mean_ns, __ATOMIC_RELAXED);
    uint64_t now = old ? old - old / WEIGHT + took_ns / WEIGHT : took_ns;
    if (!old || old >= AT_HAND_NS || took_ns >= AT_HAND_NS)
        __atomic_store_n(mean_ns, now ? now : 1, __ATOMIC_RELAXED);
}

static void note(struct taken *t, uint64_t near_ns, uint64_t took_ns) {
    note_mean(&t->mean_ns, took_ns < MOST_NS ? took_ns : MOST_NS);
    note_share(&t->at_hand, took_ns < AT_HAND_NS);
    note_share(&t->near, took_ns < near_ns);
}

void monarch_note_source_open(uint64_t took_ns) { note(&opens, OPEN_NEAR_NS, took_ns); }
void monarch_note_source_read(uint64_t took_ns) { note(&reads, READ_NEAR_NS, took_ns); }

uint64_t monarch_latency_ns(void) {
    uint64_t open = __atomic_load_n(&opens.mean_ns, __ATOMIC_RELAXED);
    return open ? open + __atomic_load_n(&reads.mean_ns, __ATOMIC_RELAXED) : 0;
}

static int are_most(const uint32_t *of_opens, const uint32_t *of_reads) {
    return __atomic_load_n(of_opens, __ATOMIC_RELAXED) > SHARE_ALL / 2 &&
           __atomic_load_n(of_reads, __ATOMIC_RELAXED) > SHARE_ALL / 2;
}

/* Returns 1 if monarch_source_is_at_hand or monarch_source_is_near must return 0 now, so that the
 * next reads are measured. That is the case in one of FOLLOWED calls of a thread. Each thread
 * starts its count at another number. Otherwise, all files would get the same result in a program
 * that makes a new thread for each file. */
static int is_to_be_timed(void) {
    static uint32_t threads SELDOM;
    static __thread uint32_t checks;
    if (!checks)
        checks = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
    return checks++ % FOLLOWED == 0;
}

int monarch_source_is_at_hand(void) {
    return are_most(&opens.at_hand, &reads.at_hand) && !is_to_be_timed();
}

int monarch_source_is_near(void) {
    return are_most(&opens.near, &reads.near) && !are_most(&opens.at_hand, &reads.at_hand) &&
           !is_to_be_timed();
}
