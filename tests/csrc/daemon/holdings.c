/* Tests serving/holdings.c: which blocks a node sends to peers, which requests may go on waiting,
 * and what the peer server is told. */
#include "set_clock.h"

/* Replaces the server of server.c. The functions below count the calls that it receives. */
#include "peers/connection.h"
static struct monarch_peer_server *const server = (struct monarch_peer_server *)&time_ns;
static int wakes, ends;
static uint64_t woken[2];
static int (*settled)(void *arg, const struct monarch_peer_request *wanted);
static struct monarch_peer_server *serve(const struct monarch_peer_files *files,
                                         const struct monarch_peer_bounds *bounds,
                                         const unsigned char *key) {
    return files && bounds && key ? server : NULL;
}
static void wake(struct monarch_peer_server *s, uint32_t source, uint64_t hash) {
    wakes += s == server;
    woken[0] = source;
    woken[1] = hash;
}
static void wake_if(struct monarch_peer_server *s,
                    int (*is_settled)(void *arg, const struct monarch_peer_request *wanted),
                    void *arg) {
    wakes += s == server;
    settled = is_settled;
}
static void end(struct monarch_peer_server *s) { ends += s == server; }
#define monarch_peer_serve serve
#define monarch_peer_wake wake
#define monarch_peer_wake_if wake_if
#define monarch_peer_end end
#include "serving/holdings.c"

#include "checks.h"

#define BLOCK 4096

static struct monarch_engine *e;
static holdings *h;
static struct monarch_catalog *c;
static struct monarch_entry *entry;
static uint64_t id;
static const unsigned char key[MONARCH_KEY_BYTES] = "0123456789abcde";

static void make(void) {
    e = make_engine(BLOCK);
    h = monarch_holdings_new(e->clients, e->fills, BLOCK, key);
    c = make_catalog(64);
    add_entry(c, "other", (struct monarch_entry){.kind = MONARCH_FILE});
    entry = add_entry(c, "file", (struct monarch_entry){.kind = MONARCH_FILE, .source = 3});
    id = (uint64_t)(entry - monarch_table(c));
    monarch_holdings_catalog(h, c);
}

static void done(void) {
    monarch_holdings_free(h);
    free(c);
    free_engine(e);
}

TEST(new_holdings_have_nothing) {
    make();
    for (int i = 0; i < MONARCH_MAX_TIERS; i++)
        SAME(h->copies[i], -1);
    SAME(h->patience, MONARCH_EVERYBODY_WAITS);
    CHECK(h->block_bytes == BLOCK && h->clients == e->clients && h->fills == e->fills);
    CHECK(!h->server && !h->rotten_count && !h->moved_count);
    CHECK(memcmp(monarch_holdings_key(h), key, sizeof key) == 0 && !monarch_holdings_key(NULL));
    SAME(monarch_home_here(h, 7), MONARCH_KEPT_ELSEWHERE);
    monarch_holdings_tier(h, 3, 42);
    monarch_holdings_source(h, 2, 99);
    for (int i = 0; i < MONARCH_MAX_TIERS; i++)
        SAME(h->copies[i], i == 3 ? 42 : -1);
    SAME(h->device[2], 99);
    SAME(h->device[1], 0);
    done();
}

/* monarch_holdings_keep sets the home of each file in a list, that is, the node that keeps the
 * file. It ignores numbers that no file can have. */
TEST(homes_are_set_for_their_files) {
    make();
    const uint64_t ids[] = {5, MONARCH_MAX_FILES - 1, MONARCH_MAX_FILES, UINT64_MAX, 6};
    const uint16_t home[] = {1, 2, 3, 4, 5};
    monarch_holdings_keep(h, 4, ids, home);
    SAME(monarch_home_here(h, 5), 1);
    SAME(monarch_home_here(h, MONARCH_MAX_FILES - 1), 2);
    SAME(monarch_home_here(h, MONARCH_MAX_FILES), MONARCH_KEPT_ELSEWHERE);
    SAME(monarch_home_here(h, 6), MONARCH_KEPT_ELSEWHERE);
    done();
}

/* The sums of a finished copy are kept until the copy is dropped. */
TEST(sums_come_and_go_with_their_copy) {
    make();
    const uint64_t sums[] = {1, 2};
    monarch_holdings_sums(h, 9, sums, NULL, 2);
    struct monarch_sums_held *k = monarch_sums_hold(h->sums, 9, 2);
    CHECK(k && k->sums[1] == 2);
    monarch_sums_release(h->sums, k);
    monarch_holdings_sums(h, 9, NULL, NULL, 0);
    CHECK(!monarch_sums_hold(h->sums, 9, 2));
    monarch_holdings_sums(NULL, 9, sums, NULL, 2);
    monarch_holdings_wake(NULL, 0, 0);
    monarch_holdings_wake(h, 0, 0);
    done();
}

/* The server is told when bytes of a file have arrived, and when files will get no copy. The field
 * `patience` says which requests may go on waiting. Each change of this field is reported to the
 * server once. Without a server, nothing happens. */
TEST(requests_that_wait_are_woken) {
    const struct monarch_peer_bounds bounds = {.threads = 1};
    struct monarch_peer_request wanted = {.source = 3};
    make();
    monarch_holdings_wake(h, 1, 2);
    monarch_holdings_answer(h);
    monarch_holdings_patience(h, MONARCH_WHO_HAS_TIME_WAITS);
    SAME(wakes, 0);
    CHECK(monarch_holdings_serve(h, &bounds) == server);
    monarch_holdings_wake(h, 1, 2);
    CHECK(wakes == 1 && woken[0] == 1 && woken[1] == 2);
    monarch_holdings_answer(h);
    CHECK(wakes == 2 && settled == is_settled);
    monarch_holdings_patience(h, MONARCH_WHO_HAS_TIME_WAITS); /* no change */
    SAME(wakes, 2);
    monarch_holdings_patience(h, MONARCH_NOBODY_WAITS);
    CHECK(wakes == 3 && settled(h, &wanted) == 1);
    SAME(h->patience, MONARCH_NOBODY_WAITS);
    monarch_holdings_stop(h, server);
    SAME(ends, 1);
    monarch_holdings_wake(h, 1, 2);
    SAME(wakes, 3);
    done();
}

/* --- checks of blocks ------------------------------------------------------------------------- */

/* Returns an open copy that has one block. The copy's sum is computed from the block's sum. */
static struct open_copy single(uint64_t block_sum, uint64_t word) {
    return (struct open_copy){.id = id,
                              .word = word,
                              .blocks = 1,
                              .sum = monarch_xxh3((char *)&block_sum, sizeof block_sum),
                              .slot = -1};
}

/* The check of a block is valid for CHECKED_NS. If a peer doubts the block, the check is valid only
 * for DOUBTED_NS. */
TEST(a_check_of_a_block_is_valid_for_a_while) {
    make();
    for (int doubted = 0; doubted < 2; doubted++) {
        struct open_copy held = single(77, 1000 + (uint64_t)doubted);
        const uint64_t sum = 77, valid = doubted ? DOUBTED_NS : CHECKED_NS;
        held.is_doubted = doubted;
        SAME(check(h, &held, 0, NULL), 0);
        SAME(check(h, &held, 0, &sum), 1);
        time_ns += valid - 1;
        SAME(check(h, &held, 0, NULL), 1);
        SAME(check(h, &held, 1, NULL), 0); /* another block */
        held.word++;
        SAME(check(h, &held, 0, NULL), 0); /* another copy */
        held.word--;
        time_ns++;
        SAME(check(h, &held, 0, NULL), 0);
    }
    SAME(h->rotten_count, 0);
    done();
}

/* A block that was good may become bad. Then the newer check counts, and the daemon learns of the
 * bad copy once. */
TEST(a_rotten_block_is_noted_once) {
    make();
    struct open_copy held = single(77, 1000), other = single(5, 2000);
    const uint64_t good = 77, bad = 78;
    uint64_t ids[MONARCH_ROTTEN], words[MONARCH_ROTTEN];
    SAME(check(h, &held, 0, &good), 1);
    SAME(e->clients->doorbell, 0);
    SAME(check(h, &held, 0, &bad), 0);
    SAME(check(h, &held, 0, NULL), 0);
    SAME(e->clients->doorbell, 1);
    SAME(check(h, &held, 0, &bad), 0);
    SAME(e->clients->doorbell, 1);
    SAME(check(h, &other, 0, &bad), 0);
    SAME(e->clients->doorbell, 2);
    SAME(monarch_holdings_rotten(h, ids, words), 2);
    CHECK((words[0] == 1000 && words[1] == 2000) || (words[0] == 2000 && words[1] == 1000));
    CHECK(ids[0] == id && ids[1] == id);
    SAME(monarch_holdings_rotten(h, ids, words), 0);
    for (uint64_t i = 0; i < MONARCH_ROTTEN + 3; i++) {
        held.word = 5000 + i;
        SAME(check(h, &held, 0, &bad), 0);
    }
    SAME(monarch_holdings_rotten(h, ids, words), MONARCH_ROTTEN);
    done();
}

/* A block is compared with its recorded sum. A copy of several blocks may have no recorded sums. In
 * that case, its blocks count as good while its entry has the same word as when the copy was
 * opened. */
TEST(a_block_is_compared_with_what_is_known_of_it) {
    make();
    const uint64_t sums[] = {1, 2, 3};
    monarch_holdings_sums(h, 9, sums, NULL, 3);
    entry->word = 1234;
    struct open_copy held = {.id = id, .word = 1234, .blocks = 3, .slot = -1};
    SAME(agrees(h, &held, 1, 99), 1);
    entry->word++;
    SAME(agrees(h, &held, 1, 99), 0);
    held.sums = monarch_sums_hold(h->sums, 9, 3);
    SAME(agrees(h, &held, 1, 2), 1);
    SAME(agrees(h, &held, 1, 3), 0);
    SAME(agrees(h, &held, 2, 3), 1);
    monarch_sums_release(h->sums, held.sums);
    held = single(55, 1);
    SAME(agrees(h, &held, 0, 55), 1);
    SAME(agrees(h, &held, 0, 56), 0);
    /* blocks of a fill that is running count as good */
    held.slot = 0;
    const uint64_t bad = 56;
    SAME(check(h, &held, 0, NULL), 1);
    SAME(check(h, &held, 0, &bad), 1);
    SAME(h->rotten_count, 0);
    done();
}

/* Recorded sums are sent only if digests are recorded too. */
TEST(recorded_sums_are_sent_with_their_digests) {
    make();
    const uint64_t sums[] = {1, 2, 3};
    const struct monarch_digest digests[] = {{"a"}, {"b"}, {"c"}};
    struct monarch_digest digest;
    uint64_t sum;
    struct open_copy held = {.slot = -1};
    SAME(sum_of(h, &held, 1, &sum, &digest), 0);
    monarch_holdings_sums(h, 8, sums, NULL, 3);
    held.sums = monarch_sums_hold(h->sums, 8, 3);
    SAME(sum_of(h, &held, 1, &sum, &digest), 0);
    monarch_sums_release(h->sums, held.sums);
    monarch_holdings_sums(h, 9, sums, digests, 3);
    held.sums = monarch_sums_hold(h->sums, 9, 3);
    SAME(sum_of(h, &held, 1, &sum, &digest), 1);
    CHECK(sum == 2 && digest.bytes[0] == 'b');
    monarch_sums_release(h->sums, held.sums);
    done();
}

/* A request goes on waiting only while its file may still get a copy on this node. */
TEST(a_request_is_settled_unless_its_file_may_be_filled_here) {
    make();
    for (unsigned state = MONARCH_ABSENT; state <= MONARCH_BYPASS; state++)
        for (uint16_t home = 0; home < 4; home++) {
            struct monarch_peer_request wanted = {.source = 3, .path_hash = entry->hash};
            int may_come =
                home < MONARCH_MOVED_TO &&
                (state == MONARCH_ABSENT || state == MONARCH_WANTED || state == MONARCH_FILLING);
            entry->word = monarch_word(state, 0, 1, 7);
            monarch_holdings_keep(h, 1, &id, &home);
            SAME(is_settled(h, &wanted), !may_come);
            wanted.path_hash++;
            SAME(is_settled(h, &wanted), 1);
        }
    monarch_holdings_catalog(h, NULL);
    struct monarch_peer_request wanted = {.source = 3, .path_hash = entry->hash};
    SAME(is_settled(h, &wanted), 1);
    done();
}

/* monarch_holdings_moved reports the files that this node has begun to keep since the last call.
 * The files are listed in the order in which the node began to keep them. */
TEST(files_that_moved_here_are_told_once) {
    const uint64_t most = sizeof h->moved_here / sizeof *h->moved_here;
    const uint64_t counts[] = {0, 1, 2, most};
    uint64_t *ids = calloc(most + 1, sizeof *ids);
    for (int i = 0; i < 4; i++) {
        make();
        for (uint64_t k = 0; k < counts[i]; k++)
            h->moved_here[k] = 100 + k;
        h->moved_count = counts[i];
        memset(ids, 0, (most + 1) * sizeof *ids);
        SAME(monarch_holdings_moved(h, ids), counts[i]);
        for (uint64_t k = 0; k <= most; k++)
            SAME(ids[k], k < counts[i] ? 100 + k : 0);
        SAME(monarch_holdings_moved(h, ids), 0);
        done();
    }
    free(ids);
}
