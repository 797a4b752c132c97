/* Tests publish/publish.c and publish/writer.c: how copies are published, how entries are added and
 * updated, and how all entries move to a larger catalog. */
#include "publish/publish.c"
#include "publish/writer.c"

#include "checks.h"

#define DEV 70
#define TIER 2
#define COPY 9

static struct monarch_catalog *c;
static struct monarch_engine *e;
static struct monarch_writer *w;

static void make(void) {
    c = make_catalog(64);
    e = make_engine(4096);
    w = monarch_writer_new();
    w->catalog = c;
    for (int i = 0; i < 20; i++) {
        char name[] = {(char)('a' + i), 0};
        add_entry(c, name,
                  (struct monarch_entry){
                      .kind = MONARCH_FILE, .source = 1, .ino = 100 + (uint64_t)i, .size = 5});
    }
    e->control->source[1].dev = DEV;
}

static void done(void) {
    monarch_writer_free(w);
    free(c);
    free_engine(e);
}

static struct monarch_entry *entry(uint64_t id) { return monarch_table(c) + id; }

/* Returns the field `copy` of the entry's slot in the index by path (monarch_guess_of). */
static uint64_t guess_of(uint64_t id) {
    for (uint64_t i = 0; i < c->slots; i++)
        if (monarch_path_slot(c, i)->place && monarch_slot_id(monarch_path_slot(c, i)->place) == id)
            return monarch_path_slot(c, i)->copy;
    CHECK(0);
    return 0;
}

static struct monarch_result result(uint64_t id) {
    return (struct monarch_result){
        .id = id, .copy = COPY, .copy_ino = 555, .sum = 77, .tier = TIER, .kind = MONARCH_FILL};
}

static int publish_it(const struct monarch_result *r) {
    return monarch_publish_result(w, e->control, e->clients, r);
}

/* A copy is published only if its entry still waits for this copy, its file has not changed, and
 * its tier is not lost. */
TEST(only_the_copy_that_is_waited_for_is_published) {
    for (int way = 0; way < 6; way++) {
        make();
        struct monarch_result r = result(3);
        entry(3)->word = monarch_word(MONARCH_FILLING, 0, TIER, COPY);
        if (way == 1)
            r.copy++;
        if (way == 2)
            entry(3)->word = monarch_word(MONARCH_PRESENT, 0, TIER, COPY);
        if (way == 3)
            monarch_mark_changed(e->clients, DEV, 103);
        if (way == 4)
            monarch_lose_tier(w, TIER);
        if (way == 5)
            monarch_lose_tier(w, TIER + 1);
        uint64_t was = entry(3)->word;
        int is_published = way == 0 || way == 5;
        SAME(publish_it(&r), is_published);
        SAME(entry(3)->word, is_published ? monarch_word(MONARCH_PRESENT, 0, TIER, COPY) : was);
        SAME(entry(3)->sum, is_published ? 77 : 0);
        SAME(entry(3)->copy_ino, is_published ? 555 : 0);
        SAME(monarch_find_copy(c, TIER, 555), is_published ? 3 : -1);
        SAME(guess_of(3), is_published ? monarch_guess_of(entry(3)->hash, entry(3)->word) : 0);
        done();
    }
}

/* A stamped copy needs no place in the index of copies. Some tiers stamp only their new copies. A
 * copy that was found in such a tier has no stamp, so it needs a place. */
TEST(stamped_copies_take_no_place_in_the_index) {
    for (int way = 0; way < 5; way++) {
        make();
        struct monarch_result r = result(3);
        c->stamped = way == 1 ? TIER + 1 : way == 2 ? TIER : 0;
        c->evicting = way >= 3 ? 1U << TIER : 0;
        r.kind = way == 4 ? MONARCH_CHECK : MONARCH_FILL;
        entry(3)->word = monarch_word(MONARCH_FILLING, 0, TIER, COPY);
        SAME(publish_it(&r), 1);
        int is_indexed = way != 1 && way != 3;
        SAME(c->copies_used, is_indexed);
        SAME(monarch_find_copy(c, TIER, 555), is_indexed ? 3 : -1);
        done();
    }
}

/* Publishing stops before the index of copies is too full to be searched. A call publishes all of
 * its copies or none. */
TEST(the_index_of_copies_keeps_free_places) {
    make();
    uint64_t ids[2] = {3, 4}, inos[2] = {555, 556}, sums[2] = {1, 2};
    uint64_t words[2] = {monarch_word(MONARCH_PRESENT, 0, TIER, COPY),
                         monarch_word(MONARCH_PRESENT, 0, TIER, COPY + 1)};
    c->copies_used = MONARCH_FULL(c->slots) - 1;
    SAME(monarch_publish(w, 2, ids, words, inos, sums, NULL), -1);
    CHECK(!entry(3)->word && !entry(4)->word && monarch_find_copy(c, TIER, 555) < 0);
    struct monarch_result r = result(6);
    entry(6)->word = monarch_word(MONARCH_FILLING, 0, TIER, COPY);
    c->copies_used++;
    SAME(publish_it(&r), 0);
    SAME(entry(6)->word, monarch_word(MONARCH_FILLING, 0, TIER, COPY));
    c->copies_used -= 2;
    SAME(monarch_publish(w, 2, ids, words, inos, sums, NULL), 0);
    CHECK(entry(3)->word == words[0] && entry(4)->word == words[1]);
    SAME(c->copies_used, MONARCH_FULL(c->slots));
    c->stamped = TIER + 1; /* stamped copies need no place */
    ids[0] = 5;
    SAME(monarch_publish(w, 1, ids, words, inos, sums, NULL), 0);
    done();
}

/* If a new copy gets the inode number of an old copy, the number leads only to the new copy. */
TEST(a_reused_inode_number_leads_to_the_new_copy) {
    make();
    struct monarch_result r = result(3);
    entry(3)->word = entry(4)->word = monarch_word(MONARCH_FILLING, 0, TIER, COPY);
    SAME(publish_it(&r), 1);
    /* the old copy was removed, but the entry keeps the copy's number until the removal is
     * processed */
    entry(3)->word = monarch_word(MONARCH_ABSENT, 0, TIER, COPY);
    r.id = 4;
    SAME(publish_it(&r), 1);
    CHECK(entry(3)->copy_ino == 0 && entry(4)->copy_ino == 555);
    SAME(monarch_find_copy(c, TIER, 555), 4);
    done();
}

/* Each entry has a slot in the index by path, and the slot holds a guess of the entry's word. When
 * the entry gets a new word, its guess changes too. When the entry loses its copy, its field
 * copy_ino becomes 0. */
TEST(a_word_sets_what_depends_on_it) {
    make();
    const uint64_t present = monarch_word(MONARCH_PRESENT, 0, TIER, COPY);
    const uint64_t words[] = {monarch_word(MONARCH_WANTED, 0, 0, 0),
                              monarch_word(MONARCH_FILLING, 0, TIER, COPY),
                              present,
                              monarch_word(MONARCH_PRESENT, 0, TIER, COPY + 1),
                              monarch_word(MONARCH_ABSENT, 0, TIER, COPY + 1),
                              0};
    const uint64_t id = 7;
    for (int i = 0; i < 6; i++) {
        entry(id)->copy_ino = 555;
        monarch_set_words(w, 1, &id, &words[i]);
        SAME(entry(id)->word, words[i]);
        SAME(guess_of(id), monarch_guess_of(entry(id)->hash, words[i]));
        SAME(entry(id)->copy_ino, i == 5 ? 0 : 555);
        SAME(guess_of(6), 0);
    }
    /* the guesses are also right if several paths hash to the same slot */
    for (uint64_t all = 0; all < c->count; all++) {
        monarch_set_words(w, 1, &all, &present);
        for (uint64_t k = 0; k < c->count; k++)
            SAME(guess_of(k), k <= all ? monarch_guess_of(entry(k)->hash, present) : 0);
    }
    done();
}

/* All copies that share a place in the index are found, even if the search reaches the index's end
 * and must continue at its beginning. */
TEST(an_index_is_searched_from_its_end_to_its_beginning) {
    make();
    uint64_t n = 0, inos[8];
    for (uint64_t ino = 1; n < 8; ino++)
        if (monarch_first_slot(monarch_mix(ino + TIER), c->slots) >= c->slots - 2)
            inos[n++] = ino;
    for (uint64_t i = 0; i < 8; i++) {
        entry(i)->copy_ino = inos[i];
        entry(i)->word = monarch_word(MONARCH_PRESENT, 0, TIER, i + 1);
        monarch_put_copy(c, inos[i], TIER, i);
    }
    for (uint64_t i = 0; i < 8; i++)
        SAME(monarch_find_copy(c, TIER, inos[i]), i);
    SAME(c->copies_used, 8);
    done();
}

/* New attributes replace the old ones. The version rises by 2, so that readers notice the change.
 * The entry's word, place and home stay the same. */
TEST(an_update_replaces_the_attributes) {
    make();
    entry(3)->flags = MONARCH_OWN;
    entry(3)->word = 5;
    entry(3)->place = 6;
    struct monarch_entry was = *entry(3), fresh = {.ino = 999,
                                                   .size = 1,
                                                   .copy_ino = 2,
                                                   .sum = 3,
                                                   .blksize = 4,
                                                   .mtime_ns = 5,
                                                   .ctime_ns = 6,
                                                   .atime_ns = 7,
                                                   .btime_ns = 8,
                                                   .blocks = 9,
                                                   .mode = 10,
                                                   .uid = 11,
                                                   .gid = 12,
                                                   .nlink = 13,
                                                   .flags = MONARCH_ATTRIBUTES | MONARCH_OF_OTHERS};
    uint64_t used = c->inodes_used;
    SAME(monarch_catalog_update(w, 3, &fresh), 0);
    const struct monarch_entry *is = entry(3);
    CHECK(is->ino == 999 && is->size == 1 && is->copy_ino == 2 && is->sum == 3 && is->blksize == 4);
    CHECK(is->mtime_ns == 5 && is->ctime_ns == 6 && is->atime_ns == 7 && is->btime_ns == 8);
    CHECK(is->blocks == 9 && is->mode == 10 && is->uid == 11 && is->gid == 12 && is->nlink == 13);
    SAME(is->flags, MONARCH_OWN | MONARCH_ATTRIBUTES);
    SAME(is->version, was.version + 2);
    CHECK(is->word == 5 && is->place == 6 && is->hash == was.hash && is->path == was.path);
    SAME(monarch_find_inode(c, 1, 999), 3);
    SAME(monarch_find_inode(c, 1, 103), -1);
    SAME(c->inodes_used, used + 1);
    /* the inode number is in the index already, so it needs no further place there */
    SAME(monarch_catalog_update(w, 3, &fresh), 0);
    SAME(c->inodes_used, used + 1);
    done();
}

/* In the index by inode, updates leave enough places for all entries that can still be added. */
TEST(updates_leave_places_to_new_entries) {
    make();
    uint64_t left = c->capacity - c->count, most = c->slots / 8 * 7 - left;
    struct monarch_entry fresh = *entry(3);
    fresh.ino = 999;
    c->inodes_used = most;
    SAME(monarch_catalog_update(w, 3, &fresh), -1);
    SAME(entry(3)->ino, 103);
    fresh.ino = 103; /* 103 is in the index already, so it needs no further place */
    SAME(monarch_catalog_update(w, 3, &fresh), 0);
    fresh.ino = 999;
    c->inodes_used = most - 1;
    SAME(monarch_catalog_update(w, 3, &fresh), 0);
    done();
}

/* Entries, copies and names move to a larger catalog. A catalog that is too small or has entries
 * already is refused, and the old catalog stays. */
TEST(a_catalog_moves_to_a_larger_one) {
    make();
    uint64_t generation = 1;
    struct monarch_result r = result(3);
    entry(3)->word = monarch_word(MONARCH_FILLING, 0, TIER, COPY);
    SAME(publish_it(&r), 1);
    entry(4)->word = monarch_word(MONARCH_PRESENT, 0, TIER + 1, COPY + 1);
    entry(4)->copy_ino = 556;
    c->stamped = TIER + 2;
    c->evicting = 5;
    c->salt = 6;
    struct monarch_catalog *large = make_catalog(128), *small = make_catalog(19),
                           *narrow = make_catalog(128), *used = make_catalog(128);
    large->generation = 2;
    narrow->pool_bytes = c->pool_used - 1;
    used->count = 1;
    SAME(monarch_catalog_move(w, small, &generation), -1);
    SAME(monarch_catalog_move(w, narrow, &generation), -1);
    SAME(monarch_catalog_move(w, used, &generation), -1);
    CHECK(w->catalog == c && generation == 1);
    SAME(monarch_catalog_move(w, large, &generation), 0);
    CHECK(w->catalog == large && generation == 2 && large->count == c->count);
    CHECK(large->stamped == TIER + 2 && large->evicting == 5 && large->salt == 6);
    for (uint64_t id = 0; id < c->count; id++) {
        char name[] = {(char)('a' + id), 0};
        SAME(monarch_find(large, 1, name, 1), id);
        SAME(monarch_find_inode(large, 1, 100 + id), id);
    }
    SAME(monarch_find_copy(large, TIER, 555), 3);
    /* not found by its inode, because copies of the tier TIER + 1 are found by their stamps */
    SAME(monarch_find_copy(large, TIER + 1, 556), -1);
    SAME(large->copies_used, 1);
    large->count = 1;
    struct monarch_writer empty = {.lock = PTHREAD_MUTEX_INITIALIZER};
    SAME(monarch_catalog_move(&empty, used, &generation), 0); /* there was no catalog before */
    free(large);
    free(small);
    free(narrow);
    free(used);
    w->catalog = c;
    done();
}

/* Entries are added until the catalog has no room for entries or for texts. An entry that is known
 * already is found, not added. */
TEST(a_full_catalog_takes_no_more_entries) {
    make();
    struct monarch_entry like = {.kind = MONARCH_FILE, .source = 1, .path_len = 1};
    uint64_t id, added = 0;
    SAME(monarch_catalog_add(w, &like, 1, "a", &id, &added), 1);
    CHECK(id == 0 && added == 0);
    c->pool_bytes = c->pool_used + MONARCH_TEXT_UNIT;
    like.path_len = MONARCH_TEXT_UNIT; /* with its NUL, the path needs two units */
    SAME(monarch_catalog_add(w, &like, 1, "0123456789abcdef", &id, &added), 0);
    like.path_len--;
    SAME(monarch_catalog_add(w, &like, 1, "0123456789abcde", &id, &added), 1);
    CHECK(added == 1 && id == 20);
    c->pool_bytes = c->pool_used + 1000;
    c->capacity = c->count;
    like.path_len = 2;
    SAME(monarch_catalog_add(w, &like, 1, "xx", &id, &added), 0);
    c->capacity++;
    SAME(monarch_catalog_add(w, &like, 1, "xx", &id, &added), 1);
    done();
}

/* A file that is found again gets its new place in the listing only if it is unchanged. A directory
 * always gets its new place. The directory gets its new number of names only if it is unchanged, or
 * if only its size has changed. */
TEST(an_entry_that_is_found_again_is_merged) {
    for (int way = 0; way < 7; way++)
        for (int is_directory = 0; is_directory < 2; is_directory++) {
            uint8_t kind = is_directory ? MONARCH_DIR : MONARCH_FILE;
            struct monarch_entry mine = {.kind = kind,
                                         .place = MONARCH_NO_PLACE,
                                         .ino = 1,
                                         .size = 2,
                                         .mtime_ns = 3,
                                         .ctime_ns = 4},
                                 again = mine;
            again.place = way == 6 ? MONARCH_NO_PLACE : 8;
            again.sum = 5;
            again.ino += way == 1;
            again.size += way == 2;
            again.mtime_ns += way == 3;
            again.ctime_ns += way == 4;
            again.kind = way == 5 ? MONARCH_LINK : kind;
            meet_again(&mine, &again);
            int is_same = way == 0 || way == 6;
            SAME(mine.place, way != 6 && (is_directory || is_same) ? 8 : MONARCH_NO_PLACE);
            SAME(mine.sum, is_directory && (is_same || way == 2) ? 5 : 0);
        }
}

/* Some flags of an entry record the file's home, that is, which nodes keep the file. A new home
 * replaces these flags. All other flags stay. */
TEST(a_home_replaces_the_home_before) {
    make();
    entry(3)->flags = MONARCH_ATTRIBUTES;
    const unsigned homes[] = {MONARCH_OWN, MONARCH_OF_OTHERS, 0};
    for (int i = 0; i < 3; i++) {
        monarch_set_home(c, 3, homes[i]);
        SAME(entry(3)->flags, MONARCH_ATTRIBUTES | homes[i]);
    }
    monarch_set_home(c, c->count, MONARCH_OWN);
    SAME(entry(c->count)->flags, 0);
    done();
}

/* A thread that copies waits only a limited time for the lock of the writer. */
TEST(a_busy_writer_is_waited_for_a_while) {
    make();
    struct timespec began, now;
    pthread_mutex_lock(&w->lock);
    clock_gettime(CLOCK_REALTIME, &began);
    SAME(monarch_lock_soon(w), 0);
    clock_gettime(CLOCK_REALTIME, &now);
    CHECK((now.tv_sec - began.tv_sec) * 1000000000 + now.tv_nsec - began.tv_nsec >= LOCK_NS);
    pthread_mutex_unlock(&w->lock);
    SAME(monarch_lock_soon(w), 1);
    pthread_mutex_unlock(&w->lock);
    done();
}
