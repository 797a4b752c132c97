/* Tests copy/from_peer.c: which peers a fill asks, how often, and when it reads the source
 * instead. */
#include <time.h>

#include "peers/peers.h"
#include "shared/clock.h"

/* Replacements for functions of peer.c. They return the answers that the test has set. */
static int answer(struct monarch_peer *peer, struct monarch_peer_get *get);
static int ask_peer(struct monarch_peer *peer, struct monarch_peer_get *gets, uint64_t n,
                    char *buffer, monarch_peer_arrived arrived, void *arg) {
    int r = n == 1 ? answer(peer, gets) : -1;
    unsigned char digest[MONARCH_MAC_BYTES] = "a digest";
    if (gets->status == MONARCH_PEER_OK)
        arrived(arg, 0, 0, gets->length, gets->first + 1, digest);
    return r;
}
static int is_young;
static int peer_is_starting(const struct monarch_peer *peer) { return peer && is_young; }
#define monarch_peer_ask ask_peer
#define monarch_peer_is_starting peer_is_starting
/* The clock. It advances only while a peer is asked. */
static uint64_t time_ns = 1, an_answer_ns;
static uint64_t told_ns(void) { return time_ns; }
#define monarch_now_ns told_ns
static uint64_t slept_ns;
static int no_sleep(const struct timespec *t, struct timespec *left) {
    slept_ns += (uint64_t)t->tv_sec * 1000000000 + (uint64_t)t->tv_nsec;
    return 0;
}
#define nanosleep no_sleep
#include "copy/from_peer.c"

#include "checks.h"

#define UNIT MONARCH_UNIT
#define BLOCK (2 * UNIT)
#define BLOCKS 8
#define ASKS 512

static struct monarch_engine *e;
static struct job job;
static struct fill fill;
static char buffer[MONARCH_CHUNK];
static struct block_sum sum;
/* answers: what each peer answers next. asked: how often each peer was asked. served: how often
 * readers were served. last: the last request. */
static uint32_t answers[MONARCH_MAX_PEERS][ASKS];
static int asked[MONARCH_MAX_PEERS], served;
static struct monarch_peer_get last;
static void (*meanwhile)(void);

static int number_of(const struct monarch_peer *p) { return (int)((uintptr_t)p / 64) - 1; }

static int answer(struct monarch_peer *peer, struct monarch_peer_get *get) {
    int number = number_of(peer);
    last = *get;
    time_ns += an_answer_ns;
    get->status = answers[number][asked[number]++];
    if (meanwhile)
        meanwhile();
    return get->status == MONARCH_PEER_CUT || get->status == MONARCH_PEER_WRONG_BYTES ? -1 : 0;
}

static void serve(struct monarch_engine *of, char *with) {
    CHECK(of == e && with == buffer);
    served++;
}

static void make(int first, int second) {
    e = make_engine(BLOCK);
    e->serve_readers = serve;
    for (int i = 0; i < MONARCH_MAX_PEERS; i++)
        e->peers[i] = (struct monarch_peer *)(uintptr_t)(64 * (i + 1));
    job = (struct job){.result.id = 5, .result.home = -1, .handed = -1};
    job.entry = (struct monarch_entry){.hash = 11, .size = BLOCK * BLOCKS - 3, .source = 2};
    for (int i = 0; i < MONARCH_ASKED + MONARCH_MOVES; i++)
        job.peer[i] = i == 0 ? first : i == 1 ? second : -1;
    fill = (struct fill){.job = &job,
                         .from = -1,
                         .to = 42,
                         .unit_bytes = UNIT,
                         .block_bytes = BLOCK,
                         .blocks = BLOCKS,
                         .blocks_left = BLOCKS,
                         .peers = second < 0 ? 1 : 2};
    memset(answers, 0, sizeof answers);
    memset(asked, 0, sizeof asked);
    served = is_young = 0;
    an_answer_ns = 1000;
    meanwhile = NULL;
    memset(&last, 0, sizeof last);
}

static void demand(uint64_t unit) { e->clients->demand[3] = monarch_demand(5, unit, 2, 0); }
static int fetch(uint64_t at, uint64_t n) { return monarch_fetch(e, &fill, at, n, buffer, &sum); }

/* The request names the file by its source, path hash, size and time, which are the same on all
 * nodes. The fill records the bytes that arrive, their sums, and the peer that sent them. */
TEST(bytes_of_a_peer_are_asked_for_and_noted) {
    make(4, -1);
    job.entry.mtime_ns = 77;
    job.has_it = 1;
    SAME(fetch(BLOCK, BLOCK), 1);
    CHECK(last.path_hash == 11 && last.size == BLOCK * BLOCKS - 3 && last.source == 2);
    CHECK(last.mtime_ns == monarch_times_of(&job.entry) && last.to == 42);
    CHECK(last.first == BLOCK && last.length == BLOCK && last.at == BLOCK && !last.is_awaited);
    CHECK(last.is_owner && !last.is_doubted && !last.memory);
    CHECK(sum.has_digest && sum.xxh3 == BLOCK + 1 && !memcmp(sum.digest.bytes, "a digest", 8));
    SAME(e->counts[MONARCH_PEER_BYTES], BLOCK);
    SAME(fill.gave, 1);
    SAME(e->endpoint[MONARCH_ENDPOINT_OF_PEER(4)].flow.bytes[0], BLOCK);
    SAME(e->endpoint[MONARCH_ENDPOINT_OF_PEER(4)].busy, 0);
    SAME(monarch_giver_of(&fill), 4);
    free_engine(e);
}

/* The engine learns a peer's speed from an answer with bytes or from a timeout, but only if the
 * peer has the complete file. Otherwise the peer may itself have to wait for the source, so its
 * answer says nothing about its speed. */
TEST(only_a_peer_that_has_the_file_tells_its_speed) {
    const uint32_t status[] = {MONARCH_PEER_OK, MONARCH_PEER_TIMEOUT, MONARCH_PEER_UNKNOWN_FILE};
    for (int has_it = 0; has_it < 3; has_it++)
        for (int i = 0; i < 3; i++) {
            make(4, 6);
            struct monarch_peer_get get = {.length = UNIT};
            job.has_it = has_it;
            answers[4][0] = status[i];
            ask_once(e, &fill, 0, e->peers[4], &get, buffer, &sum);
            const struct endpoint *of = &e->endpoint[MONARCH_ENDPOINT_OF_PEER(4)];
            SAME(of->flow.bytes[0], has_it == 1 && i == 0 ? UNIT : 0);
            SAME(of->flow.ns[0] > 0, has_it == 1 && i < 2);
            SAME(of->busy, 0);
            free_engine(e);
        }
}

/* A reader awaits a range of bytes if it demands a unit that overlaps the range. Demands for other
 * units or other files do not count. */
TEST(a_reader_waits_for_the_units_of_its_demand) {
    make(4, -1);
    for (uint64_t unit = 0; unit < 8; unit++) {
        demand(unit);
        SAME(is_awaited(e, &fill, 2 * UNIT, 3 * UNIT), unit >= 2 && unit < 5);
        SAME(is_awaited(e, &fill, 2 * UNIT, 2 * UNIT + 1), unit >= 2 && unit < 5);
        SAME(is_awaited(e, &fill, 0, 1), unit == 0);
    }
    e->clients->demand[3] = monarch_demand(6, 2, 2, 0);
    SAME(is_awaited(e, &fill, 2 * UNIT, UNIT), 0);
    demand(2);
    fetch(2 * UNIT, UNIT);
    SAME(last.is_awaited, 1);
    free_engine(e);
}

/* A silent peer is asked TRIES times, or ASKED_TRIES times if a reader waits for the bytes. Between
 * two tries, the thread serves other readers, unless a reader waits for these bytes. */
TEST(a_silent_peer_is_asked_a_few_times) {
    for (int is_asked = 0; is_asked < 2; is_asked++) {
        make(4, -1);
        for (int i = 0; i < ASKS; i++)
            answers[4][i] = MONARCH_PEER_TIMEOUT;
        if (is_asked)
            demand(0);
        SAME(fetch(0, UNIT), 0);
        SAME(asked[4], is_asked ? ASKED_TRIES : TRIES);
        SAME(served, is_asked ? 0 : TRIES - 1);
        SAME(fill.asks, 1);
        SAME(fill.is_last_late, 0);
        free_engine(e);
    }
}

/* A peer that answers COMING is receiving the bytes, so it is not silent. As long as it answers
 * COMING, it is asked again and again. After each of these answers, it may be silent for as many
 * tries as at the beginning. */
TEST(a_peer_whose_bytes_are_coming_is_asked_on) {
    make(4, -1);
    for (int i = 0; i < 40; i++)
        answers[4][i] = i % 3 ? MONARCH_PEER_TIMEOUT : MONARCH_PEER_COMING;
    SAME(fetch(0, UNIT), 1);
    SAME(asked[4], 41);
    free_engine(e);
}

/* If a peer fails, does not have the file, or has another version of it, the fill asks the next
 * peer. For all later bytes, the fill asks this next peer at once. */
TEST(a_peer_that_fails_is_followed_by_the_next) {
    const uint32_t bad[] = {MONARCH_PEER_CUT, MONARCH_PEER_UNKNOWN_FILE, MONARCH_PEER_CHANGED,
                            MONARCH_PEER_WRONG_BYTES, MONARCH_PEER_REFUSED};
    for (int i = 0; i < 5; i++) {
        make(4, 6);
        answers[4][0] = bad[i];
        SAME(fetch(0, UNIT), 1);
        CHECK(asked[4] == 1 && asked[6] == 1 && fill.asks == 1 && fill.gave == 2);
        SAME(last.is_owner, 0); /* two peers are named, so it is not known which one is the owner */
        SAME(fetch(UNIT, UNIT), 1);
        CHECK(asked[4] == 1 && asked[6] == 2);
        SAME(monarch_giver_of(&fill), 6);
        fill.gave |= 1;
        SAME(monarch_giver_of(&fill), -1); /* two peers gave bytes */
        fill.gave = 2;
        fill.from = 3;
        SAME(monarch_giver_of(&fill), -1); /* the source gave bytes too */
        answers[6][2] = bad[i];
        SAME(fetch(0, UNIT), 0);
        SAME(fetch(0, UNIT), 0);
        CHECK(asked[4] == 1 && asked[6] == 3 && fill.asks == 2);
        free_engine(e);
    }
}

/* If the order names a peer that does not exist, the next peer of the order is asked. */
TEST(a_peer_that_is_gone_is_followed_by_the_next) {
    make(4, 6);
    e->peers[4] = NULL;
    SAME(fetch(0, UNIT), 1);
    CHECK(asked[4] == 0 && asked[6] == 1 && fill.gave == 2);
    free_engine(e);
}

/* A peer without room names the node that keeps the file. The fill asks that node next, as the
 * owner, and the node becomes the home of the file. The fill adds no node twice to the peers of the
 * order, and adds at most MONARCH_MOVES nodes. */
TEST(a_fill_follows_a_file_that_was_passed_on) {
    make(4, -1);
    answers[4][0] = MONARCH_PEER_MOVED + 9;
    SAME(fetch(0, UNIT), 1);
    CHECK(asked[9] == 1 && job.peer[1] == 9 && job.result.home == 9 && last.is_owner);
    follow(&fill, 0, 9);
    SAME(job.peer[2], -1);
    follow(&fill, 1, MONARCH_MAX_PEERS);
    SAME(job.peer[2], -1);
    follow(&fill, 0, 0); /* a node that is named later is added after the first one */
    SAME(job.peer[1], 9);
    SAME(job.peer[2], 0);
    SAME(job.peer[3], -1);
    SAME(job.result.home, 0);
    free_engine(e);

    make(0, -1);
    for (int i = 0; i < MONARCH_MAX_PEERS; i++)
        answers[i][0] = MONARCH_PEER_MOVED + (uint32_t)i + 1;
    SAME(fetch(0, UNIT), 0);
    for (int i = 0; i < MONARCH_ASKED + MONARCH_MOVES; i++)
        SAME(asked[i], 1);
    SAME(asked[MONARCH_ASKED + MONARCH_MOVES], 0);
    free_engine(e);
}

/* An order names two peers. If the second one answers that another node keeps the file, this third
 * node is asked too. */
TEST(a_node_that_was_named_is_asked_as_the_owner) {
    make(4, 6);
    answers[4][0] = MONARCH_PEER_UNKNOWN_FILE;
    answers[6][0] = MONARCH_PEER_MOVED + 2;
    SAME(fetch(0, UNIT), 1);
    CHECK(asked[2] == 1 && last.is_owner && job.peer[2] == 2 && fill.gave == 4);
    free_engine(e);
}

/* If a reader waits for the last block, there are two cases in which this block comes from the
 * source. In the first case, more than NEAR_END blocks are missing, so the peer's copy is probably
 * incomplete too. In the second case, the peer was already late with this block. Neither case
 * counts as a failure of the peer. */
TEST(a_reader_of_the_last_block_does_not_wait_for_a_peer) {
    const uint64_t at = (BLOCKS - 1) * BLOCK, n = BLOCK - 3;
    for (int is_asked = 0; is_asked < 2; is_asked++)
        for (uint64_t left = NEAR_END; left <= NEAR_END + 1; left++)
            for (int late = 0; late < 2; late++)
                for (int is_last = 0; is_last < 2; is_last++) {
                    make(4, 6);
                    fill.blocks_left = left;
                    fill.is_last_late = late;
                    uint64_t from = is_last ? at : at - BLOCK;
                    if (is_asked)
                        demand(from / UNIT);
                    int is_early = is_last && is_asked && (late || left > NEAR_END);
                    SAME(fetch(from, n), !is_early);
                    SAME(asked[4], !is_early);
                    CHECK(asked[6] == 0 && fill.asks == 0);
                    free_engine(e);
                }
    make(4, -1);
    fill.blocks = 1; /* if the file has only one block, its last block comes from the peer too */
    fill.is_last_late = 1;
    demand(0);
    SAME(fetch(0, UNIT), 1);
    free_engine(e);
}

/* A peer that is late with the last block does not count as failed. For other blocks, it is still
 * asked first. */
TEST(a_peer_that_is_late_with_the_last_block_is_kept) {
    make(4, 6);
    for (int i = 0; i < ASKS; i++)
        answers[4][i] = MONARCH_PEER_TIMEOUT;
    SAME(fetch((BLOCKS - 1) * BLOCK, UNIT), 0);
    CHECK(fill.is_last_late && fill.asks == 0 && asked[6] == 0);
    /* For any other block, a late peer counts as silent, so the next peer is asked. */
    SAME(fetch(0, UNIT), 1);
    CHECK(fill.asks == 1 && asked[6] == 1);
    free_engine(e);
}

static void stop(void) { e->stopping = 1; }
static void fail(void) { fill.failed = 1; }

/* Once the engine stops or the fill has failed, no peer is asked again. */
TEST(an_end_ends_the_questions) {
    for (int way = 0; way < 2; way++) {
        make(4, -1);
        for (int i = 0; i < ASKS; i++)
            answers[4][i] = MONARCH_PEER_COMING;
        meanwhile = way ? stop : fail;
        SAME(fetch(0, UNIT), 0);
        SAME(asked[4], 1);
        free_engine(e);
    }
}

static void come(void) {
    if (asked[4] == 5)
        demand(0);
}

/* A peer that is still starting is asked until it serves, unless a reader waits for the bytes. */
TEST(a_peer_that_is_starting_is_asked_until_it_serves) {
    const uint32_t silent[] = {MONARCH_PEER_CUT, MONARCH_PEER_TIMEOUT};
    make(4, -1);
    is_young = 1;
    for (int i = 0; i < 30; i++)
        answers[4][i] = silent[0];
    slept_ns = 0;
    SAME(fetch(0, UNIT), 1);
    SAME(asked[4], 31);
    SAME(slept_ns, 30 * STARTING_NS);
    free_engine(e);

    make(4, -1);
    is_young = 1;
    for (int i = 0; i < 30; i++)
        answers[4][i] = silent[0];
    meanwhile = come;
    SAME(fetch(0, UNIT), 0);
    SAME(asked[4], 5);
    free_engine(e);

    make(4, -1);
    is_young = 1;
    answers[4][0] = MONARCH_PEER_WRONG_BYTES; /* it serves already */
    SAME(fetch(0, UNIT), 0);
    SAME(asked[4], 1);
    free_engine(e);
}

static uint64_t from_ns;
static void come_later(void) {
    if (time_ns >= from_ns)
        demand(0);
}

/* A peer that answers COMING is asked again and again, but only for COMING_NS. If a reader waits
 * for the bytes, the fill stops asking when the reader has waited for COMING_ASKED_NS. */
TEST(the_wait_for_bytes_that_are_coming_has_an_end) {
    const uint64_t second = 1000000000, step = second / 10;
    const struct {
        uint64_t comes, ends;
    } cases[] = {{0, COMING_ASKED_NS},
                 {10 * second, 10 * second + COMING_ASKED_NS},
                 {28 * second, COMING_NS},
                 {100 * second, COMING_NS}};
    for (int i = 0; i < 4; i++) {
        make(4, 6);
        for (int k = 0; k < ASKS; k++)
            answers[4][k] = MONARCH_PEER_COMING;
        an_answer_ns = step;
        from_ns = time_ns + cases[i].comes;
        meanwhile = come_later;
        come_later();
        uint64_t began = time_ns;
        SAME(fetch(0, UNIT), 0);
        /* the thread notices a demand, or the end of a wait, only after the next answer */
        uint64_t took = time_ns - began, late = cases[i].ends + 2 * step;
        CHECK(took > cases[i].ends - step && took <= late);
        CHECK(fill.asks == 0 && asked[6] == 0); /* the peer has not failed */
        free_engine(e);
    }
}

/* If a reader waits for the bytes, and the first peer took more than SILENCE_NS to answer, the next
 * peer is not asked. The bytes then come from the source. */
TEST(a_reader_waits_for_one_silent_peer_only) {
    for (int is_asked = 0; is_asked < 2; is_asked++)
        for (uint64_t more = 0; more < 2; more++) {
            make(4, 6);
            answers[4][0] = MONARCH_PEER_UNKNOWN_FILE;
            an_answer_ns = SILENCE_NS + more;
            if (is_asked)
                demand(0);
            SAME(fetch(0, UNIT), !(is_asked && more));
            SAME(asked[6], !(is_asked && more));
            SAME(fill.asks, 1);
            free_engine(e);
        }
}

/* A demand for the entry before or after the fill's entry is no demand for the fill's bytes. */
TEST(a_reader_of_another_file_waits_for_that_file) {
    make(4, -1);
    for (uint64_t entry = 4; entry < 7; entry++) {
        e->clients->demand[3] = monarch_demand(entry, 2, 2, 0);
        SAME(is_awaited(e, &fill, 2 * UNIT, UNIT), entry == 5);
    }
    free_engine(e);
}
