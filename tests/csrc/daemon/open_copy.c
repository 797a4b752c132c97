#include "set_clock.h"

#include "shared/catalog.h"
static int find_slot(const struct monarch_fills *fills, uint64_t word);
#define monarch_fill_slot find_slot
#include "serving/open_copy.c"
#undef monarch_fill_slot

#include "checks.h"

#define BLOCK (4 * MONARCH_UNIT)
#define SIZE (2 * BLOCK + 1)
#define COPY 0x1a
#define TIER 2

static struct monarch_engine *e;
static holdings *h;
static struct monarch_catalog *c;
static struct monarch_entry *entry;
static struct monarch_peer_request wanted;
static struct monarch_peer_opened out;
static uint64_t id;
static const unsigned char key[MONARCH_KEY_BYTES] = "key";

/* If set to 1, the fill ends just before its slot is looked up. */
static int ends_meanwhile;
static int find_slot(const struct monarch_fills *fills, uint64_t word) {
    if (ends_meanwhile) {
        entry->word = monarch_word(MONARCH_PRESENT, 0, TIER, COPY);
        memset(e->fills->word, 0, sizeof e->fills->word);
        ends_meanwhile = 0;
    }
    return monarch_fill_slot(fills, word);
}

static void make(uint64_t size) {
    e = make_engine(BLOCK);
    h = monarch_holdings_new(e->clients, e->fills, BLOCK, key);
    c = make_catalog(64);
    add_entry(c, "other", (struct monarch_entry){.kind = MONARCH_FILE, .size = 1, .ino = 8});
    entry = add_entry(c, "file",
                      (struct monarch_entry){.kind = MONARCH_FILE,
                                             .source = 3,
                                             .size = size,
                                             .ino = 9,
                                             .mtime_ns = 11,
                                             .ctime_ns = 12});
    id = (uint64_t)(entry - monarch_table(c));
    monarch_holdings_source(h, 3, 77);
    monarch_holdings_catalog(h, c);
    monarch_holdings_patience(h, MONARCH_NOBODY_WAITS);
    int copies = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    monarch_holdings_tier(h, TIER, copies);
    unlink("000000000001a");
    close(make_file("000000000001a", size, 7));
    wanted = (struct monarch_peer_request){.source = 3,
                                           .path_hash = entry->hash,
                                           .size = size,
                                           .mtime_ns = monarch_times_of(entry),
                                           .length = 100};
}

static void done(void) {
    close(h->copies[TIER]);
    monarch_holdings_free(h);
    free(c);
    free_engine(e);
}

static void keep(uint16_t home) { monarch_holdings_keep(h, 1, &id, &home); }
static unsigned ask(void) { return monarch_open_copy(h, &wanted, &out); }
static struct open_copy *held(void) { return out.file; }

/* Makes the copy look as if a fill were running in this slot, with the first `units` units
 * copied. */
static void begin_fill(int slot, uint64_t units) {
    entry->word = e->fills->word[slot] = monarch_word(MONARCH_FILLING, 0, TIER, COPY);
    struct monarch_fill *f = &e->fills->fill[slot];
    memset(f, 0, sizeof *f);
    f->unit_bytes = MONARCH_UNIT;
    for (uint64_t u = 0; u < units; u++)
        f->done[u / 64] |= 1ULL << u % 64;
}

static int demands(void) {
    int n = 0;
    for (int i = 0; i < MONARCH_DEMANDS; i++)
        n += e->clients->demand[i] != 0;
    return n;
}

/* --- which file is meant ---------------------------------------------------------------------- */

/* A complete copy is opened for every request for its file, whichever node keeps the file. */
TEST(a_complete_copy_is_opened) {
    make(2 * BLOCK);
    entry->word = monarch_word(MONARCH_PRESENT, 0, TIER, COPY);
    SAME(ask(), MONARCH_PEER_OK);
    SAME(held()->blocks, 2);
    monarch_close_copy(h, held());
    done();
    make(SIZE);
    uint64_t sums[3] = {1, 2, 3};
    monarch_holdings_sums(h, COPY, sums, NULL, 3);
    entry->word = monarch_word(MONARCH_PRESENT, 0, TIER, COPY);
    entry->sum = 55;
    int before = open_descriptors();
    for (uint16_t home = 0; home < 3; home++) {
        keep(home);
        wanted.is_doubted = home;
        SAME(ask(), MONARCH_PEER_OK);
        CHECK(out.size == SIZE && out.block_bytes == BLOCK && out.fd == held()->fd);
        CHECK(held()->id == id && held()->word == entry->word && held()->blocks == 3);
        CHECK(held()->slot == -1 && held()->is_whole && held()->sum == 55 && held()->sums);
        SAME(held()->is_doubted, home > 0);
        SAME(monarch_copy_available(h, held(), 7), SIZE);
        SAME(open_descriptors(), before + 1);
        monarch_close_copy(h, held());
        SAME(open_descriptors(), before);
    }
    CHECK(unlink("000000000001a") == 0);
    SAME(ask(), MONARCH_PEER_UNKNOWN_FILE);
    SAME(open_descriptors(), before);
    done();
}

/* A request for another version of the file, or for a file that has changed, is answered with
 * CHANGED. A request for another file is answered with UNKNOWN_FILE. */
TEST(another_version_of_a_file_is_not_sent) {
    make(SIZE);
    entry->word = monarch_word(MONARCH_PRESENT, 0, TIER, COPY);
    wanted.size++;
    SAME(ask(), MONARCH_PEER_CHANGED);
    wanted.size--;
    wanted.mtime_ns++;
    SAME(ask(), MONARCH_PEER_CHANGED);
    wanted.mtime_ns--;
    entry->ctime_ns++;
    SAME(ask(), MONARCH_PEER_CHANGED);
    entry->ctime_ns--;
    entry->version = 1; /* an odd version: the attributes are being replaced */
    SAME(ask(), MONARCH_PEER_CHANGED);
    entry->version = 2;
    wanted.path_hash++;
    SAME(ask(), MONARCH_PEER_UNKNOWN_FILE);
    wanted.path_hash--;
    wanted.source = 2;
    SAME(ask(), MONARCH_PEER_UNKNOWN_FILE);
    wanted.source = MONARCH_MAX_SOURCES;
    SAME(ask(), MONARCH_PEER_UNKNOWN_FILE);
    wanted.source = 3;
    entry->kind = MONARCH_LINK;
    SAME(ask(), MONARCH_PEER_UNKNOWN_FILE);
    entry->kind = MONARCH_FILE;
    monarch_mark_changed(e->clients, 77, 8);
    SAME(ask(), MONARCH_PEER_OK);
    monarch_close_copy(h, held());
    monarch_mark_changed(e->clients, 77, 9);
    SAME(ask(), MONARCH_PEER_CHANGED);
    monarch_holdings_catalog(h, NULL);
    SAME(ask(), MONARCH_PEER_UNKNOWN_FILE);
    done();
}

/* --- files without a copy --------------------------------------------------------------------- */

/* The answer for a file without a copy depends on the state of the file and on the node that keeps
 * it. It also depends on whether it is known yet which node keeps which file. */
TEST(the_answer_for_a_file_without_a_copy) {
    const uint64_t words[] = {0, monarch_word(MONARCH_WANTED, 0, 0, 0),
                              monarch_word(MONARCH_FILLING, 0, TIER, COPY),
                              monarch_word(MONARCH_BYPASS, MONARCH_NO_ROOM, 0, 0),
                              monarch_word(MONARCH_BYPASS, MONARCH_FAILED, 0, 0)};
    uint64_t ids[MONARCH_MOVED];
    make(SIZE);
    for (unsigned state = 0; state < 5; state++)
        for (uint16_t home = 0; home < 4; home++)
            for (int patience = 0; patience < 3; patience++)
                for (unsigned flags = 0; flags < 4; flags++) {
                    keep(home);
                    memset(&e->clients->wanted, 0, sizeof e->clients->wanted);
                    monarch_holdings_patience(h, patience);
                    entry->word = words[state];
                    wanted.is_awaited = flags & 1;
                    wanted.is_owner = flags >> 1;
                    int waits_here = patience == MONARCH_EVERYBODY_WAITS ||
                                     (patience == MONARCH_WHO_HAS_TIME_WAITS && !(flags & 1));
                    unsigned no = waits_here ? MONARCH_PEER_LATER : MONARCH_PEER_UNKNOWN_FILE;
                    int begins = home == MONARCH_KEPT_HERE ||
                                 (home == MONARCH_KEPT_ELSEWHERE && flags >> 1 && !waits_here);
                    unsigned right;
                    if (!(flags & 1) && waits_here)
                        right = MONARCH_PEER_LATER;
                    else if (home >= MONARCH_MOVED_TO)
                        right = MONARCH_PEER_MOVED + home - MONARCH_MOVED_TO;
                    else if (state < 2)
                        right = begins ? MONARCH_PEER_LATER : no;
                    else if (state == 2)
                        right = home == MONARCH_KEPT_HERE ? MONARCH_PEER_LATER : no;
                    else if (state == 3 && home == MONARCH_KEPT_ELSEWHERE)
                        right = begins ? MONARCH_PEER_LATER : no;
                    else
                        right = MONARCH_PEER_UNKNOWN_FILE;
                    uint32_t rung = e->clients->doorbell;
                    SAME(ask(), right);
                    int was_begun = right == MONARCH_PEER_LATER && begins && state != 2 &&
                                    ((flags & 1) || !waits_here);
                    /* the daemon's loop is woken to order the fill */
                    SAME(e->clients->doorbell - rung, was_begun);
                    SAME(monarch_bit_is_set(e->clients->wanted.word, id), was_begun);
                    SAME(monarch_holdings_moved(h, ids), was_begun && home == 0);
                    SAME(monarch_home_here(h, id), was_begun ? MONARCH_KEPT_HERE : home);
                }
    done();
}

/* As long as it is not known which node keeps which file, a peer that requests an unknown file is
 * told to ask again later. The field `patience` says for which requests this holds. */
TEST(an_unknown_file_may_become_known) {
    make(SIZE);
    wanted.path_hash++;
    for (int patience = 0; patience < 3; patience++)
        for (uint16_t awaited = 0; awaited < 2; awaited++) {
            monarch_holdings_patience(h, patience);
            wanted.is_awaited = awaited;
            int waits_here = patience == MONARCH_EVERYBODY_WAITS ||
                             (patience == MONARCH_WHO_HAS_TIME_WAITS && !awaited);
            SAME(ask(), waits_here ? MONARCH_PEER_LATER : MONARCH_PEER_UNKNOWN_FILE);
        }
    done();
}

/* When a node begins to keep a file, it notes this once. It begins to keep only as many files
 * as it can report to the daemon (MONARCH_MOVED). */
TEST(a_node_notes_the_files_that_it_begins_to_keep) {
    make(SIZE);
    uint64_t ids[MONARCH_MOVED];
    SAME(begin_to_keep(h, id), 1);
    SAME(begin_to_keep(h, id), 1);
    SAME(monarch_holdings_moved(h, ids), 1);
    SAME(ids[0], id);
    SAME(monarch_holdings_moved(h, ids), 0);
    for (uint64_t i = 0; i < MONARCH_MOVED; i++)
        SAME(begin_to_keep(h, 100 + i), 1);
    SAME(begin_to_keep(h, 100 + MONARCH_MOVED), 0);
    SAME(monarch_home_here(h, 100 + MONARCH_MOVED), MONARCH_KEPT_ELSEWHERE);
    SAME(monarch_holdings_moved(h, ids), MONARCH_MOVED);
    SAME(ids[MONARCH_MOVED - 1], 100 + MONARCH_MOVED - 1);
    SAME(begin_to_keep(h, 100 + MONARCH_MOVED), 1);
    SAME(begin_to_keep(h, MONARCH_MAX_FILES), 0);
    done();
}

/* --- demands ---------------------------------------------------------------------------------- */

/* A request for at most one unit becomes a demand, and so does a request that a reader waits for.
 * If the file has more units than a map has bits, no request becomes a demand. */
TEST(hasty_requests_become_demands) {
    make(SIZE);
    keep(MONARCH_KEPT_HERE);
    for (uint16_t awaited = 0; awaited < 2; awaited++)
        for (int more = -1; more < 2; more++) {
            memset(e->clients->demand, 0, sizeof e->clients->demand);
            wanted.is_awaited = awaited;
            wanted.first = 5 * MONARCH_UNIT + 3;
            wanted.length = MONARCH_UNIT + (uint64_t)more;
            const struct monarch_bell *bells = e->clients->engine;
            uint32_t rings = bells[MONARCH_FROM_SOURCE].rings;
            SAME(ask(), MONARCH_PEER_LATER);
            SAME(demands(), awaited || more < 1);
            /* a node reads the files that it keeps from the source */
            SAME(bells[MONARCH_FROM_SOURCE].rings - rings, demands());
            SAME(bells[MONARCH_FROM_PEER].rings, 0);
            if (demands()) {
                SAME(monarch_demand_entry(e->clients->demand[0]), id);
                SAME(monarch_demand_unit(e->clients->demand[0]), 5);
            }
        }
    memset(e->clients->demand, 0, sizeof e->clients->demand);
    wanted.length = 0; /* the request only asks whether the file is here */
    SAME(ask(), MONARCH_PEER_LATER);
    SAME(demands(), 0);
    struct monarch_peer_request many = {.is_awaited = 1, .length = 1};
    h->block_bytes = 1000;
    many.size = 1000ULL * MONARCH_FILL_UNITS - 1;
    SAME(is_hasty(h, &many), 1);
    many.size++;
    SAME(is_hasty(h, &many), 0);
    done();
}

/* A demand that exists already is not made again. Demands of peers use only the first DEMANDS
 * slots, and never replace another demand. */
TEST(demands_of_peers_leave_slots_to_readers) {
    make(SIZE);
    for (uint64_t i = 0; i < MONARCH_DEMANDS; i++)
        demand(h, 4, i, MONARCH_ORIGINS);
    SAME(demands(), DEMANDS);
    for (uint64_t i = 0; i < DEMANDS; i++) {
        SAME(monarch_demand_entry(e->clients->demand[i]), 4);
        SAME(monarch_demand_unit(e->clients->demand[i]), i);
    }
    uint64_t was = e->clients->demand[3];
    uint32_t rings = e->clients->engine[0].rings;
    demand(h, 4, 3, MONARCH_ORIGINS);
    SAME(e->clients->engine[0].rings, rings);
    SAME(e->clients->demand[3], was);
    e->clients->demand[3] = e->clients->demand[5] = 0;
    demand(h, 4, 6, MONARCH_ORIGINS); /* slot 6 already holds this demand */
    SAME(demands(), DEMANDS - 2);
    demand(h, 5, 6, MONARCH_ORIGINS);
    demand(h, 4, 999, MONARCH_ORIGINS);
    SAME(demands(), DEMANDS);
    SAME(monarch_demand_entry(e->clients->demand[3]), 5);
    SAME(monarch_demand_unit(e->clients->demand[5]), 999);
    CHECK((was & 0xFFF) != (e->clients->demand[3] & 0xFFF));
    done();
}

/* --- copies that are being filled ------------------------------------------------------------- */

/* While a fill runs, only the units before the first missing unit can be sent. The last block can
 * be sent only after the fill, when the file is known to be unchanged. */
TEST(a_fill_gives_what_it_has_but_for_the_last_block) {
    make(SIZE);
    keep(MONARCH_KEPT_HERE);
    for (uint64_t units = 0; units <= 9; units++) {
        begin_fill(0, units);
        memset(e->clients->demand, 0, sizeof e->clients->demand);
        SAME(ask(), MONARCH_PEER_OK);
        CHECK(held()->slot == 0 && !held()->is_whole && !held()->sums);
        for (uint64_t at = 0; at < SIZE; at += MONARCH_UNIT / 2) {
            uint64_t there = units * MONARCH_UNIT < 2 * BLOCK ? units * MONARCH_UNIT : 2 * BLOCK;
            SAME(monarch_copy_available(h, held(), at), there > at ? there : at);
        }
        /* each request is for at most one unit, so a missing unit is demanded */
        CHECK((demands() > 0) == (units < 9));
        e->fills->fill[0].whole = 1;
        SAME(monarch_copy_available(h, held(), 3), SIZE);
        CHECK(held()->is_whole);
        monarch_close_copy(h, held());
    }
    done();
}

/* Missing bytes are demanded only if somebody waits for them. Bytes of the last block that are
 * present but held back are not demanded. */
TEST(only_missing_bytes_that_are_awaited_are_demanded) {
    make(SIZE);
    keep(MONARCH_KEPT_HERE);
    for (uint16_t awaited = 0; awaited < 2; awaited++) {
        begin_fill(0, 2);
        wanted.is_awaited = awaited;
        wanted.length = SIZE;
        SAME(ask(), MONARCH_PEER_OK);
        SAME(held()->is_hasty, awaited);
        SAME(monarch_copy_available(h, held(), 0), 2 * MONARCH_UNIT);
        SAME(demands(), 0);
        SAME(monarch_copy_available(h, held(), 2 * MONARCH_UNIT), 2 * MONARCH_UNIT);
        SAME(demands(), awaited);
        if (awaited)
            SAME(monarch_demand_unit(e->clients->demand[0]), 2);
        memset(e->clients->demand, 0, sizeof e->clients->demand);
        begin_fill(0, 9);
        SAME(monarch_copy_available(h, held(), 2 * BLOCK), 2 * BLOCK);
        SAME(demands(), 0);
        e->fills->fill[0].unit_bytes = 0; /* the fill has no map */
        SAME(monarch_copy_available(h, held(), 0), 0);
        SAME(demands(), 0);
        monarch_close_copy(h, held());
    }
    done();
}

/* After a fill has failed, no more bytes come. When a fill has ended, the file's entry shows
 * whether there is a copy. */
TEST(the_end_of_a_fill_is_noticed) {
    make(SIZE);
    keep(MONARCH_KEPT_HERE);
    begin_fill(0, 2);
    SAME(ask(), MONARCH_PEER_OK);
    e->fills->fill[0].failed = 1;
    SAME(monarch_copy_available(h, held(), 0), MONARCH_PEER_NEVER);
    e->fills->word[0] = monarch_word(MONARCH_FILLING, 0, TIER, COPY + 1);
    SAME(monarch_copy_available(h, held(), 0), MONARCH_PEER_NEVER);
    entry->word = monarch_word(MONARCH_PRESENT, 0, TIER, COPY + 1);
    SAME(monarch_copy_available(h, held(), 0), MONARCH_PEER_NEVER);
    entry->word = monarch_word(MONARCH_PRESENT, 0, TIER + 1, COPY);
    SAME(monarch_copy_available(h, held(), 0), MONARCH_PEER_NEVER);
    entry->word = monarch_word(MONARCH_PRESENT, 0, TIER, COPY);
    SAME(monarch_copy_available(h, held(), 0), SIZE);
    entry->word = 0; /* the copy was dropped, but the open file can still be sent */
    SAME(monarch_copy_available(h, held(), 0), SIZE);
    monarch_close_copy(h, held());
    done();
}

/* If the fill ends while the request is being handled, the complete copy is opened. The request
 * must not wait, because nothing would wake it any more. */
TEST(a_fill_that_ends_meanwhile_is_not_waited_for) {
    make(SIZE);
    keep(MONARCH_KEPT_HERE);
    begin_fill(4, 1);
    ends_meanwhile = 1;
    SAME(ask(), MONARCH_PEER_OK);
    CHECK(held()->slot == -1 && held()->is_whole && demands() == 0);
    monarch_close_copy(h, held());
    done();
}

/* If a fill is ordered but has not begun, the peer is told to ask again later, and the first unit
 * of its request is demanded. */
TEST(a_fill_that_has_not_begun_is_waited_for) {
    make(SIZE);
    keep(MONARCH_KEPT_HERE);
    entry->word = monarch_word(MONARCH_FILLING, 0, TIER, COPY);
    SAME(ask(), MONARCH_PEER_LATER);
    SAME(demands(), 1);
    done();
}

TEST(a_copy_has_its_word_or_another) {
    make(SIZE);
    entry->word = 5;
    SAME(monarch_has_word(h, id, 5), 1);
    SAME(monarch_has_word(h, id, 6), 0);
    SAME(monarch_has_word(h, 0, 5), 0);
    monarch_holdings_catalog(h, NULL);
    SAME(monarch_has_word(h, id, 5), 0);
    done();
}

/* A peer is told to ask again in two cases. In the first case, it is not known yet which
 * node keeps which file. In the second case, a source has answered within the last STUCK_NS. */
TEST(a_peer_asks_again_while_a_source_answers) {
    make(SIZE);
    const uint64_t ago[] = {0, 1, STUCK_NS - 1, STUCK_NS};
    SAME(monarch_copy_is_coming(h), 0);
    for (int i = 0; i < 4; i++) {
        e->fills->source_ns = time_ns - ago[i];
        SAME(monarch_copy_is_coming(h), i < 3);
    }
    for (int patience = 0; patience < 3; patience++) {
        monarch_holdings_patience(h, patience);
        SAME(monarch_copy_is_coming(h), patience != MONARCH_NOBODY_WAITS);
    }
    done();
}
