#include "engine/grant.h"
#include "engine/work.h"

static int rests_ended, handed_on, kept;
static void end_rest(struct pool *p) { rests_ended += p != NULL; }
static struct job *done_job;
static void do_handed(struct worker *w, struct job *job) {
    done_job = job;
    handed_on++;
}
#define monarch_end_rest end_rest
#define monarch_do_handed do_handed
#include "handover/kept.h"
/* has_room: whether the table of waiting descriptors takes another descriptor. was_asked: whether
 * the table was told that the daemon's policy has been asked to fill the file. */
static int has_room, was_asked;
static int keep(struct kept_table *t, struct handed *h, int is_asked) {
    kept += has_room;
    was_asked = is_asked;
    return has_room;
}
#define monarch_keep keep
#include "handover/receive.c"

#include "checks.h"

static struct pool *p;
static struct monarch_engine *e;
static struct monarch_catalog *c;
static struct monarch_writer *w;
static struct stat here;
static int root;

static void make(void) {
    e = make_engine(4096);
    p = calloc(1, sizeof *p);
    c = make_catalog(64);
    w = monarch_writer_new();
    w->catalog = c;
    root = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(fstat(root, &here) == 0);
    mkdir("d", 0700);
    unlink("d/file");
    close(make_file("d/file", 100, 7));
    char target[1];
    struct monarch_entry like;
    CHECK(monarch_stat_entry(root, 2, "d/file", &like, target, 1) == 0);
    add_entry(c, "d/file", like);
    e->control->source[2].dev = here.st_dev;
    p->shared = *e;
    p->shared.writer = w;
    p->roots[2] = root;
    p->copies[0] = root;
    p->free_slots = 1;
    p->slot[0] = 33;
    pthread_mutex_init(&p->lock, NULL);
    rests_ended = handed_on = kept = 0;
    has_room = 1;
}

static void done(void) {
    monarch_writer_free(w);
    close(root);
    free(c);
    free(p);
    free_engine(e);
}

static void grant(void) {
    p->grant.holds = p->grant.tiers = 1;
    p->grant.next_copy = 9;
    p->grant.room[0] = (struct monarch_room){.bytes = 1000000, .inodes = 9, .block_bytes = 1};
}

TEST(a_path_is_plain_as_the_scan_spells_it) {
    const char *plain[] = {"a", "a/b", "...", ".a", "a/..b/c.", "..a", "a.", "x/..."};
    const char *other[] = {"",    "/",    "/a",  "a/",   "a//b",   ".",    "..",
                           "a/.", "a/..", "./a", "../a", "a/../b", "a/./b"};
    for (unsigned i = 0; i < sizeof plain / sizeof *plain; i++)
        SAME(is_plain(plain[i]), 1);
    for (unsigned i = 0; i < sizeof other / sizeof *other; i++)
        SAME(is_plain(other[i]), 0);
}

/* A message ends after the number of its entry or, if there is no entry, after its path. It is
 * invalid if it has another length, or if one of its numbers is beyond the daemon's tables. */
TEST(a_message_is_as_long_as_it_says) {
    const ssize_t short_one = offsetof(struct monarch_handover, source);
    const ssize_t before = offsetof(struct monarch_handover, path);
    struct monarch_handover what = {.id = MONARCH_MAX_FILES - 1};
    SAME(is_valid(&what, short_one), 1);
    for (ssize_t n = 0; n < before + 20; n++)
        SAME(is_valid(&what, n), n == short_one);
    what.id++;
    SAME(is_valid(&what, short_one), 0);
    what = (struct monarch_handover){
        .id = monarch_unmet(9), .source = MONARCH_MAX_SOURCES - 1, .path_len = 4, .path = "a/bc"};
    for (ssize_t n = 0; n < before + 20; n++)
        SAME(is_valid(&what, n), n == before + 5);
    what.path[2] = 0; /* the path is shorter than path_len */
    SAME(is_valid(&what, before + 5), 0);
    what.path[2] = 'b';
    what.path[4] = 'x'; /* now the path is longer than path_len */
    SAME(is_valid(&what, before + 5), 0);
    what.path[4] = 0;
    what.source++;
    SAME(is_valid(&what, before + 5), 0);
    what.source = 0;
    what.id = 3;
    SAME(is_valid(&what, before + 5), 0);
    what.id = monarch_unmet(9);
    memset(what.path, 'a', sizeof what.path);
    what.path_len = MONARCH_SCAN_HINT_PATH - 1;
    what.path[what.path_len] = 0;
    SAME(is_valid(&what, sizeof what.path + before), 1);
    what.path_len++;
    SAME(is_valid(&what, sizeof what.path + before + 1), 0);
}

static struct monarch_handover message(const char *path) {
    struct monarch_handover what = {.id = path ? monarch_unmet(5) : 0,
                                    .is_read = 7,
                                    .source = 2,
                                    .path_len = path ? (uint32_t)strlen(path) : 0};
    if (path)
        strcpy(what.path, path);
    return what;
}

/* If a file has no entry, its descriptor must be open on the file at the message's path, on the
 * source's device. */
TEST(a_descriptor_is_that_of_its_path) {
    make();
    e->clients->renames = 4;
    int fd = open("d/file", O_RDONLY | O_CLOEXEC), other = make_file("other", 1, 1);
    struct monarch_handover what = message("d/file");
    struct handed *h = new_handed(p, fd, &what);
    CHECK(h && h->fd == fd && h->is_read == 1 && h->id == MONARCH_NO_ENTRY && h->renames == 4);
    CHECK(h->claim == what.id && strcmp(h->path, "d/file") == 0 && h->entry.path_len == 6);
    CHECK(h->entry.size == 100 && h->entry.kind == MONARCH_FILE && h->since_ns);
    free(h);
    CHECK(!new_handed(p, other, &what) && !new_handed(p, root, &what) && !new_handed(p, -1, &what));
    const char *paths[] = {"d/none", "d", "d/../d/file", "other"};
    for (int i = 0; i < 4; i++) {
        what = message(paths[i]);
        CHECK(!new_handed(p, fd, &what));
    }
    what = message("d/file");
    e->control->source[2].dev++;
    CHECK(!new_handed(p, fd, &what));
    /* A message without a path is for a file that has an entry. The checks are left to the fill. */
    what = message(NULL);
    h = new_handed(p, fd, &what);
    CHECK(h && h->id == 0 && h->claim == 0 && !h->path[0] && h->entry.path_len == 0);
    free(h);
    close(fd);
    close(other);
    done();
}

/* If the file of a descriptor can be filled now, the descriptor is passed on to the fill, together
 * with a slot. Otherwise the descriptor waits in the table, or is closed. If the daemon's policy
 * must act before the file can be filled, the policy is asked to fill the file. */
TEST(a_descriptor_is_filled_kept_or_closed) {
    const struct {
        int holds, slots, room, is_recalled;
        uint64_t word;
        int is_done, is_kept, rings, asks;
    } cases[] = {
        {1, 1, 1, 0, 0, 1, 0, 0, 0},                                     /* granted */
        {0, 1, 1, 0, 0, 0, 1, 0, 0},                                     /* no grant yet */
        {1, 0, 1, 0, 0, 0, 1, 0, 0},                                     /* no slot is free */
        {0, 1, 0, 0, 0, 0, 0, 1, 0},                                     /* the table is full */
        {1, 1, 1, 0, monarch_word(MONARCH_ABSENT, 0, 0, 7), 0, 1, 1, 1}, /* refused */
        {1, 1, 0, 0, monarch_word(MONARCH_ABSENT, 0, 0, 7), 0, 0, 1, 1},
        {1, 1, 1, 0, monarch_word(MONARCH_BYPASS, 0, 0, 0), 0, 0, 0, 0}, /* nothing to do */
        {1, 1, 1, 1, 0, 0, 0, 1, 0},                                     /* the program wants it */
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        make();
        struct handovers all = {.pool = p};
        struct taker me = {.all = &all};
        struct monarch_handover what = message(NULL);
        int fd = open("d/file", O_RDONLY | O_CLOEXEC), before = open_descriptors();
        if (cases[i].holds)
            grant();
        p->free_slots = (unsigned)cases[i].slots;
        has_room = cases[i].room;
        monarch_table(c)[0].word = cases[i].word;
        e->clients->claim[0] = monarch_claim_of(0, MONARCH_CLAIM_HANDED, monarch_now_ns());
        if (cases[i].is_recalled)
            e->clients->claim[0] |= MONARCH_CLAIM_RECALLED;
        struct handed *h = new_handed(p, fd, &what);
        take(&me, h);
        SAME(handed_on, cases[i].is_done);
        SAME(kept, cases[i].is_kept);
        SAME(rests_ended, cases[i].rings);
        SAME(monarch_bit_is_set(e->clients->wanted.word, 0), cases[i].rings);
        int is_closed = !cases[i].is_done && !cases[i].is_kept;
        SAME(open_descriptors(), before - is_closed);
        SAME(e->clients->claim[0] == 0, is_closed);
        if (cases[i].is_done) {
            CHECK(done_job->slot == 33 && p->free_slots == 0 && done_job->handed == fd);
            CHECK(done_job->is_read && done_job->result.id == 0);
            free(done_job);
        }
        if (cases[i].is_kept) {
            SAME(was_asked, cases[i].asks);
            free(h);
        }
        if (!is_closed)
            close(fd);
        done();
    }
}

/* If a descriptor cannot be used, its claim ends. If its file has an entry, the daemon's policy is
 * asked to fill the file. */
TEST(a_useless_descriptor_still_asks_for_its_file) {
    for (int way = 0; way < 3; way++) {
        make();
        struct monarch_handover what = message(way == 2 ? "d/none" : NULL);
        uint64_t slot = what.id % MONARCH_CLAIMS;
        e->clients->claim[slot] = monarch_claim_of(what.id, MONARCH_CLAIM_HANDED, monarch_now_ns());
        int before = open_descriptors();
        take_none(p, way == 1 ? -1 : open("d", O_RDONLY | O_CLOEXEC), &what);
        SAME(open_descriptors(), before);
        SAME(rests_ended, way < 2);
        SAME(e->clients->claim[slot], 0);
        SAME(monarch_bit_is_set(e->clients->wanted.word, 0), way < 2);
        if (way < 2) {
            take_none(p, -1, &what);
            SAME(rests_ended, 1); /* policy was asked already */
        }
        done();
    }
}
