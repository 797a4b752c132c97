/* Tests two files: handover/kept.c contains the table of waiting descriptors, and handover/handed.c
 * orders fills for descriptors. kept_thread.c tests the table's thread. */
#include "set_clock.h"

static int rests_ended;
#include "engine/grant.h"
static void end_rest(struct pool *p) { rests_ended += p != NULL; }
#define monarch_end_rest end_rest
#include "handover/handed.c"
#include "handover/kept.c"
#undef monarch_now_ns

#include "checks.h"

#define FILES 8

static struct pool *p;
static struct kept_table *t;
static struct monarch_catalog *c;
static struct monarch_writer *w;
static struct monarch_engine *e;
static int root;

/* Makes a pool and its table of waiting descriptors. The table has no thread. */
static void make(void) {
    e = make_engine(4096);
    p = calloc(1, sizeof *p);
    c = make_catalog(64);
    for (int i = 0; i < FILES; i++) {
        char name[] = {(char)('a' + i), 0};
        add_entry(
            c, name,
            (struct monarch_entry){.kind = MONARCH_FILE, .size = 100, .ino = 50 + (uint64_t)i});
    }
    w = monarch_writer_new();
    w->catalog = c;
    root = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < MONARCH_MAX_SOURCES; i++)
        p->roots[i] = root;
    for (int i = 0; i < MONARCH_MAX_TIERS; i++)
        p->copies[i] = root;
    p->shared = *e;
    p->shared.writer = w;
    pthread_mutex_init(&p->lock, NULL);
    t = calloc(1, sizeof *t);
    t->pool = p;
    t->most = KEPT;
    pthread_mutex_init(&t->lock, NULL);
    p->kept = t;
    p->free_slots = 3;
    rests_ended = 0;
    time_ns += 1000000000000;
}

static void grant(void) {
    p->grant.holds = 1;
    p->grant.tiers = 1;
    p->grant.next_copy = 9;
    p->grant.room[0] =
        (struct monarch_room){.bytes = 1000000, .inodes = 100, .block_bytes = 1, .entry_bytes = 0};
}

static void done(void) {
    monarch_free_kept(t);
    for (int i = 0; i < 2; i++)
        for (struct job *job; (job = monarch_pop(&p->in_use[i]));)
            free(job);
    monarch_writer_free(w);
    close(root);
    free(c);
    free(p);
    free_engine(e);
}

/* Makes a descriptor as if a program had handed it over: for the entry `id` or, if `id` is
 * MONARCH_NO_ENTRY, for `path`. Sets its claim. */
static struct handed *hand(uint64_t id, const char *path) {
    struct handed *h = calloc(1, sizeof *h + 16);
    h->fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    h->id = id;
    h->claim = id == MONARCH_NO_ENTRY ? 99 : id;
    h->since_ns = time_ns;
    h->entry.ino = id == MONARCH_NO_ENTRY ? 77 : 50 + id;
    h->entry.kind = MONARCH_FILE;
    strcpy(h->path, path);
    h->entry.path_len = (uint16_t)strlen(path);
    e->clients->claim[h->claim] = monarch_claim_of(h->claim, MONARCH_CLAIM_HANDED, time_ns);
    return h;
}

static int is_claimed(uint64_t claim) { return e->clients->claim[claim] != 0; }
static unsigned dropped(void) {
    unsigned n = 0;
    for (struct handed *h = t->dropped; h; h = h->next)
        n++;
    return n;
}

/* Makes an order that fills a file from the source: the file with this entry, or at this path. */
static struct job *order(uint64_t id, const char *path) {
    struct job *job = calloc(1, sizeof *job + 16);
    job->result.id = id;
    job->result.kind = MONARCH_FILL;
    job->peer[0] = job->handed = -1;
    job->entry.ino = id == MONARCH_NO_ENTRY ? 77 : 50 + id;
    strcpy(job->path, path);
    return job;
}

/* A new table has room for at most a quarter of the descriptors that the process may open. If a
 * table is full, the caller keeps its descriptor. */
TEST(the_table_has_a_limit) {
    make();
    t->most = 2;
    struct handed *all[3];
    for (int i = 0; i < 3; i++) {
        all[i] = hand((uint64_t)i, "");
        uint32_t bell = t->bell;
        SAME(monarch_keep(t, all[i], i), i < 2);
        /* only the first descriptor wakes the thread, which sleeps only while the table is empty */
        SAME(t->bell - bell, i == 0);
        SAME(all[i]->is_told, i == 1);
    }
    SAME(t->count, 2);
    CHECK(t->at[0] == all[0] && t->ino[1] == 51);
    monarch_give_back(p, all[2]);
    free(all[2]);
    done();
    struct rlimit limit = {400, 400};
    make();
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    p->shared.stopping = 1;
    struct kept_table *small = monarch_new_kept(p);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    CHECK(small && monarch_join_kept(small, &until));
    SAME(small->most, 100);
    monarch_free_kept(small);
    done();
}

/* The flag is_told says that the daemon's policy knows of a file. monarch_keep sets the flag only
 * if the file has an entry and the policy was asked to fill the file. */
TEST(policy_knows_of_files_with_an_entry_that_it_was_asked_for) {
    make();
    p->grant.iterations = 7;
    struct handed *unmet = hand(MONARCH_NO_ENTRY, "new"), *met = hand(1, "");
    monarch_keep(t, unmet, 1);
    monarch_keep(t, met, 1);
    CHECK(!unmet->is_told && met->is_told && met->told_at == 7);
    done();
}

/* An order finds the descriptor of its file by the entry. If the descriptor came without an entry,
 * the order finds it by source and path. The order takes the descriptor out of the table. */
TEST(an_order_takes_its_descriptor) {
    make();
    struct handed *h[] = {hand(1, ""), hand(2, ""), hand(MONARCH_NO_ENTRY, "new")};
    for (int i = 0; i < 3; i++)
        monarch_keep(t, h[i], 0);
    h[2]->is_read = 1;
    const int fds[] = {h[0]->fd, h[1]->fd, h[2]->fd};
    struct job *jobs[] = {order(2, "b"), order(1, "a"), order(5, "new"), order(5, "other")};
    jobs[2]->entry.ino = jobs[3]->entry.ino = 77;
    for (int i = 0; i < 4; i++) {
        monarch_note_kept(p, jobs[i]);
        SAME(jobs[i]->is_kept, i < 3);
    }
    CHECK(h[0]->is_ordered && h[1]->is_ordered && h[2]->is_ordered);
    jobs[2]->entry.source = 1;
    monarch_take_kept(p, jobs[2]); /* nothing is found, because the source differs */
    SAME(jobs[2]->handed, -1);
    jobs[2]->entry.source = 0;
    for (int i = 0; i < 4; i++)
        monarch_take_kept(p, jobs[i]);
    CHECK(jobs[0]->handed == fds[1] && jobs[1]->handed == fds[0] && jobs[2]->handed == fds[2]);
    CHECK(jobs[0]->claim == 2 && !jobs[0]->is_read && jobs[2]->claim == 99 && jobs[2]->is_read);
    CHECK(jobs[3]->handed == -1 && t->count == 0 && is_claimed(1) && is_claimed(2));
    for (int i = 0; i < 4; i++) {
        if (jobs[i]->handed >= 0)
            close(jobs[i]->handed);
        free(jobs[i]);
    }
    done();
}

/* Only a fill from the source waits for a descriptor. Other orders, and fills that ask a peer, do
 * not. */
TEST(only_a_fill_from_the_source_waits_for_a_descriptor) {
    make();
    struct job *job = order(1, "a");
    monarch_note_kept(p, job); /* the table is still empty */
    monarch_keep(t, hand(1, ""), 0);
    job->result.kind = MONARCH_CHECK;
    monarch_note_kept(p, job);
    job->result.kind = MONARCH_FILL;
    job->peer[0] = 2;
    monarch_note_kept(p, job);
    CHECK(!job->is_kept && !t->at[0]->is_ordered);
    p->kept = NULL;
    job->peer[0] = -1;
    monarch_note_kept(p, job);
    p->kept = t;
    SAME(job->is_kept, 0);
    job->entry.ino++; /* another file has the name now */
    monarch_note_kept(p, job);
    SAME(job->is_kept, 0);
    free(job);
    done();
}

/* If an order already has a descriptor, the descriptor that the table holds for the same file is
 * closed. If the table has already dropped the descriptor of an order's file, the order gets none.
 * In the end, no descriptor of the table is open. */
TEST(a_descriptor_that_no_order_needs_is_closed) {
    make();
    int before = open_descriptors();
    struct handed *first = hand(1, ""), *second = hand(2, "");
    struct job *one = order(1, "a"), *two = order(2, "b");
    monarch_keep(t, first, 0);
    monarch_keep(t, second, 0);
    one->handed = 1000;
    monarch_take_kept(p, one);
    CHECK(one->handed == 1000 && !is_claimed(1));
    drop_descriptor(t, second);
    drop_descriptor(t, second); /* a second call queues nothing */
    SAME(dropped(), 1);
    monarch_take_kept(p, two);
    SAME(two->handed, -1);
    SAME(open_descriptors(), before + 1);
    close_dropped(t);
    SAME(open_descriptors(), before);
    CHECK(!is_claimed(2) && t->count == 0 && !t->dropped);
    free(one);
    free(two);
    done();
}

/* Each waiting file without an entry is reported once to the daemon's policy. One call reports only
 * files of a single source, and at most as many files as fit into the caller's array. */
TEST(policy_learns_of_new_files_once) {
    make();
    struct monarch_entry entries[4];
    char pool[64];
    const char *paths[] = {"x/one", "two", "three", "four"};
    for (int i = 0; i < 4; i++) {
        struct handed *h = hand(MONARCH_NO_ENTRY, paths[i]);
        h->entry.source = i == 1;
        h->entry.size = (uint64_t)i;
        monarch_keep(t, h, 0);
    }
    monarch_keep(t, hand(3, ""), 0);
    struct monarch_engine *of = (struct monarch_engine *)p;
    /* A directory was renamed after the paths were looked up. */
    SAME(monarch_engine_unmet(of, 0, 1, entries, 2, pool), 0);
    SAME(monarch_engine_unmet(of, 0, 0, entries, 2, pool), 2);
    CHECK(entries[0].size == 0 && entries[1].size == 2 && entries[1].path == 6);
    CHECK(strcmp(pool, "x/one") == 0 && strcmp(pool + 6, "three") == 0);
    CHECK(t->at[0]->is_told && !t->at[1]->is_told && !t->at[3]->is_told && !t->at[4]->is_told);
    SAME(monarch_engine_unmet(of, 0, 0, entries, 4, pool), 1);
    CHECK(strcmp(pool + entries[0].path, "four") == 0);
    SAME(monarch_engine_unmet(of, 0, 0, entries, 4, pool), 0);
    SAME(monarch_engine_unmet(of, 1, 0, entries, 4, pool), 1);
    done();
}

/* A descriptor without an order is given up only if three conditions hold. First, the daemon's
 * policy knows of the descriptor's file. Second, the daemon's loop has had ITERATIONS iterations
 * since the policy learned of the file. Third, more than ORDER_NS have passed since the descriptor
 * arrived. */
TEST(a_descriptor_waits_for_policy_and_for_a_while) {
    make();
    struct handed h = {.since_ns = time_ns, .told_at = UINT32_MAX};
    for (int told = 0; told < 2; told++)
        for (uint32_t iterations = 0; iterations < 4; iterations++)
            for (int is_long = 0; is_long < 2; is_long++) {
                h.is_told = told;
                p->grant.iterations = UINT32_MAX + iterations;
                SAME(is_in_vain(t, &h, time_ns + ORDER_NS + (uint64_t)is_long),
                     told && iterations >= ITERATIONS && is_long);
            }
    done();
}

/* A descriptor waits for a fill of its file. With a grant, the fill is ordered at once. Without a
 * grant, the descriptor goes on waiting. If an old copy is in the way, the daemon's policy is also
 * asked to fill the file. If the file needs no fill any more, the descriptor is closed. */
TEST(a_descriptor_waits_until_its_file_is_ordered) {
    const struct {
        uint64_t word;
        int holds, stays, ordered, asks;
    } cases[] = {{0, 1, 1, 1, 0},
                 {0, 0, 1, 0, 0},
                 {monarch_word(MONARCH_WANTED, 0, 0, 0), 1, 1, 1, 0},
                 {monarch_word(MONARCH_PRESENT, 0, 0, 7), 1, 0, 0, 0},
                 {monarch_word(MONARCH_BYPASS, 0, 0, 0), 1, 0, 0, 0},
                 {monarch_word(MONARCH_FILLING, 0, 0, 7), 1, 1, 0, 0},
                 {monarch_word(MONARCH_ABSENT, 0, 0, 7), 1, 1, 0, 1}}; /* an old copy is there */
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        make();
        if (cases[i].holds)
            grant();
        monarch_table(c)[1].word = cases[i].word;
        struct handed *h = hand(1, "");
        monarch_keep(t, h, 0);
        monarch_look_at_kept(p);
        SAME(t->count, cases[i].stays);
        SAME(dropped(), !cases[i].stays);
        SAME(p->in_use[MONARCH_FROM_SOURCE].length, cases[i].ordered);
        SAME(rests_ended, cases[i].asks);
        SAME(monarch_bit_is_set(e->clients->wanted.word, 1), cases[i].asks);
        if (cases[i].ordered) {
            const struct job *job = p->in_use[MONARCH_FROM_SOURCE].first;
            CHECK(job->is_kept && h->is_ordered && job->result.id == 1 && job->result.in_use);
            CHECK(job->peer[0] == -1 && monarch_has_order(p, 1));
            SAME(p->pending[1][MONARCH_FROM_SOURCE], 1);
        }
        if (cases[i].asks) { /* policy is asked once */
            SAME(h->is_told, 1);
            monarch_look_at_kept(p);
            SAME(rests_ended, 1);
        }
        done();
    }
}

/* A descriptor is closed if it does not belong to the file of its entry. The daemon's policy is
 * then asked to fill the file of the entry. */
TEST(a_descriptor_of_another_file_is_closed) {
    make();
    grant();
    struct handed *h = hand(1, ""), *none = hand(2, "");
    h->entry.ino++;
    none->id = c->count;
    struct job *job;
    SAME(monarch_order_handed(p, c, none, &job), MONARCH_ANOTHERS);
    CHECK(!job);
    SAME(monarch_order_handed(p, c, h, &job), MONARCH_ANOTHERS);
    monarch_keep(t, h, 0);
    monarch_look_at_kept(p);
    CHECK(t->count == 0 && dropped() == 1 && rests_ended == 1);
    none->id = 2;
    monarch_give_back(p, none);
    free(none);
    done();
}

/* If a program wants its descriptor back, the next look at the table closes it. The daemon's policy
 * is still asked to fill the file, unless the fill is ordered or the policy already knows of the
 * file. */
TEST(a_recalled_descriptor_is_dropped_at_once) {
    for (int way = 0; way < 4; way++) {
        make();
        struct handed *h = hand(way == 2 ? MONARCH_NO_ENTRY : 1, way == 2 ? "new" : "");
        monarch_keep(t, h, way == 3);
        h->is_ordered = way == 1;
        e->clients->claim[h->claim] |= MONARCH_CLAIM_RECALLED;
        monarch_look_at_kept(p);
        /* a file without an entry stays in the table until policy learns of the file */
        SAME(t->count, way == 2);
        SAME(dropped(), way == 2 ? 1 : 2);
        SAME(rests_ended, way == 0);
        SAME(monarch_bit_is_set(e->clients->wanted.word, 1), way == 0);
        close_dropped(t);
        SAME(is_claimed(way == 2 ? 99 : 1), 0);
        done();
    }
}

/* While the catalog is being replaced (`c` is NULL), nothing is ordered. Descriptors go on waiting
 * until they are given up. */
TEST(without_the_writer_descriptors_wait) {
    make();
    grant();
    struct handed *h = hand(1, "");
    monarch_keep(t, h, 0);
    int asks = 0;
    SAME(stays(t, h, NULL, time_ns, &asks), 1);
    CHECK(!asks && !h->is_ordered);
    h->is_ordered = 1;
    SAME(stays(t, h, NULL, time_ns, &asks), 1);
    h->is_ordered = 0;
    h->is_told = 1;
    p->grant.iterations = h->told_at + ITERATIONS;
    SAME(stays(t, h, NULL, time_ns + ORDER_NS + 1, &asks), 0);
    done();
}

/* --- how a fill is ordered for a descriptor --------------------------------------------------- */

/* A fill that reads the descriptor's file from the source may already be queued. It is then taken
 * over for the descriptor: it becomes a fill of a file in use, and leaves its queue. A fill that
 * asks a peer, or that waits for another descriptor, stays as it is. */
TEST(a_queued_fill_is_taken_over) {
    for (int way = 0; way < 3; way++) {
        make();
        struct handed *h = hand(1, "");
        struct job *job = order(1, "a"), *taken;
        monarch_table(c)[1].word = monarch_word(MONARCH_FILLING, 0, 0, 7);
        SAME(monarch_order_handed(p, c, h, &taken), MONARCH_NOT_YET);
        job->is_kept = way == 1;
        job->peer[0] = way == 2 ? 4 : -1;
        monarch_push(&p->normal[MONARCH_FROM_SOURCE], job);
        monarch_remember(p, job);
        p->pending[0][MONARCH_FROM_SOURCE] = 5;
        SAME(monarch_order_handed(p, c, h, &taken), MONARCH_TAKEN);
        CHECK(taken == (way ? NULL : job));
        SAME(job->result.in_use, way == 0);
        SAME(p->normal[MONARCH_FROM_SOURCE].length, way > 0);
        SAME(p->pending[0][MONARCH_FROM_SOURCE], 5 - (way == 0));
        SAME(p->pending[1][MONARCH_FROM_SOURCE], way == 0);
        if (way)
            monarch_unqueue(p, job);
        free(job);
        monarch_give_back(p, h);
        free(h);
        done();
    }
}

/* A file without an entry gets one if the grant allows new entries for its source. If a directory
 * was renamed after the file's path was looked up, the file gets an entry but no copy. */
TEST(a_new_file_gets_an_entry_within_the_grant) {
    for (int way = 0; way < 5; way++) {
        make();
        struct handed *h = hand(MONARCH_NO_ENTRY, "new");
        struct job *job;
        h->entry.size = 10;
        h->entry.source = 2;
        h->is_read = 1;
        if (way > 0)
            grant();
        p->grant.meets = way == 1 ? ~(1U << 2) : 1U << 2;
        e->clients->renames = way == 3;
        if (way == 4)
            c->capacity = c->count;
        enum monarch_answer answer = monarch_order_handed(p, c, h, &job);
        SAME(answer, way == 0               ? MONARCH_NOT_YET
                     : way == 1 || way == 4 ? MONARCH_REFUSED
                                            : MONARCH_TAKEN);
        SAME(job != NULL, way == 2);
        SAME(c->count, FILES + (way == 2 || way == 3));
        SAME(h->id == MONARCH_NO_ENTRY, way < 2 || way == 4);
        if (way == 2 || way == 3) {
            SAME(h->id, FILES);
            SAME(monarch_bit_is_set(e->clients->read.word, FILES), 1);
            SAME(MONARCH_WORD_STATE(monarch_entries(c)[FILES].word),
                 way == 2 ? MONARCH_FILLING : MONARCH_BYPASS);
        }
        SAME(monarch_asks_policy(p, h), 1);
        if (h->id != MONARCH_NO_ENTRY)
            SAME(monarch_asks_policy(p, h), 0); /* policy was asked already */
        free(job);
        monarch_give_back(p, h);
        monarch_give_back(p, h);
        free(h);
        done();
    }
}

/* A new file counts as read only if the program that hands its descriptor over has read the
 * complete file. */
TEST(a_new_file_is_read_if_its_program_says_so) {
    for (int is_read = 0; is_read < 2; is_read++) {
        make();
        grant();
        p->grant.meets = 1;
        struct handed *h = hand(MONARCH_NO_ENTRY, "new");
        struct job *job;
        h->is_read = is_read;
        SAME(monarch_order_handed(p, c, h, &job), MONARCH_TAKEN);
        SAME(monarch_bit_is_set(e->clients->read.word, h->id), is_read);
        free(job);
        monarch_give_back(p, h);
        free(h);
        done();
    }
}
