/* Tests scan/tasks.c and scan/batch.c: in which order a scan's tasks are taken, how many names may
 * be examined, and how found entries are handed over. */
#include <pthread.h>

#include "set_clock.h"
#include "shared/pace.h"

/* How often each condition was signalled and broadcast. */
static struct {
    const pthread_cond_t *condition;
    int signals, broadcasts;
} rings[4];
static int count_ring(const pthread_cond_t *condition, int is_signal) {
    int i = 0;
    while (rings[i].condition && rings[i].condition != condition)
        i++;
    rings[i].condition = condition;
    rings[i].signals += is_signal;
    rings[i].broadcasts += !is_signal;
    return 0;
}
#define pthread_cond_signal(c) count_ring(c, 1)
#define pthread_cond_broadcast(c) count_ring(c, 0)
#include "scan/batch.c"
#include "scan/tasks.c"

#include "checks.h"

static struct monarch_scan *s;
static uint32_t bell;

/* Makes a scan for `threads` threads, and starts none of them. */
static void make(int threads) {
    s = calloc(1, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more_work, NULL);
    pthread_cond_init(&s->may_go_on, NULL);
    pthread_cond_init(&s->room, NULL);
    s->threads = threads;
    s->doorbell = &bell;
    bell = 0;
    memset(rings, 0, sizeof rings);
}

static void done(void) {
    int finished;
    for (struct monarch_batch *b; (b = monarch_scan_take(s, &finished));)
        monarch_batch_free(b);
    s->may_look[0] = s->may_look[1] = ALL_NAMES;
    while (monarch_has_tasks(s))
        free(monarch_take_task(s));
    free(s);
}

static struct task *add(const char *path, uint32_t names) {
    struct task *t = monarch_new_task(s, path, 10);
    t->names = names;
    monarch_add_task(s, t);
    return t;
}

/* --- what is wanted --------------------------------------------------------------------------- */

/* A want asks for one directory to be scanned first. It covers this directory and all directories
 * above it. A deep want also covers all directories below it. */
TEST(a_want_covers_the_way_to_its_directory) {
    const struct {
        const char *directory;
        int flat, deep;
    } cases[] = {{"", 1, 1},       {"a", 1, 1},  {"a/b", 1, 1}, {"a/b/c", 0, 1},  {"a/bc", 0, 0},
                 {"a/bc/d", 0, 0}, {"ab", 0, 0}, {"b", 0, 0},   {"a/b/c/d", 0, 1}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int is_deep = 0; is_deep < 2; is_deep++) {
            struct want w = {.is_set = 1, .is_deep = is_deep, .directory = "a/b"};
            SAME(is_named(&w, cases[i].directory), is_deep ? cases[i].deep : cases[i].flat);
        }
    struct want root = {.is_set = 1, .directory = ""};
    SAME(is_named(&root, ""), 1);
    SAME(is_named(&root, "a"), 0);
}

/* The scan remembers the last WANTS wanted directories, because they may cover directories that are
 * found later. */
TEST(the_last_wants_are_remembered) {
    make(2);
    char name[16];
    SAME(is_wanted(s, "d0"), 0);
    for (int i = 0; i <= WANTS; i++) {
        snprintf(name, sizeof name, "d%d", i);
        monarch_scan_want(s, name, i % 2);
    }
    SAME(is_wanted(s, "d0"), 0); /* the oldest want is forgotten */
    for (int i = 1; i <= WANTS; i++) {
        snprintf(name, sizeof name, "d%d", i);
        SAME(is_wanted(s, name), 1);
        strcat(name, "/x");
        SAME(is_wanted(s, name), i % 2);
    }
    SAME(s->is_all_wanted, 0);
    monarch_scan_want(s, "", 0);
    SAME(s->is_all_wanted, 0);
    monarch_scan_want(s, "", 1);
    SAME(s->is_all_wanted, 1);
    done();
}

/* When a want is added, the queued tasks that it covers move to the queues of wanted tasks. These
 * tasks may be directories or portions of names. A covered task that is found later is put into
 * these queues directly. */
TEST(a_want_moves_what_it_covers) {
    make(2);
    struct task *other = add("x", 0), *file = add("a/b", 0), *deep = add("a/b/c", 0);
    struct task *p1 = add("x", 3), *p2 = add("a/b", 3), *p3 = add("a/b/c", 2);
    CHECK(!s->wanted.first && !s->wanted_portions.first && s->portions.portions == 3);
    monarch_scan_want(s, "a/b", 0);
    CHECK(s->wanted.first == file && file->is_wanted && !file->next);
    CHECK(s->todo == deep && deep->next == other && !deep->is_wanted);
    CHECK(s->wanted_portions.first == p2 && s->wanted_portions.portions == 1 && p2->is_wanted);
    CHECK(s->portions.first == p1 && s->portions.last == p3 && s->portions.portions == 2);
    monarch_scan_want(s, "a", 1);
    CHECK(s->wanted.last == deep && s->todo == other);
    CHECK(s->wanted_portions.last == p3 && s->portions.first == p1 && s->portions.portions == 1);
    struct task *late = add("a/b/z", 0), *names = add("a/b/z", 1);
    CHECK(late->is_wanted && s->wanted.last == late && s->wanted_portions.last == names);
    struct task *newest = add("y", 0);
    CHECK(s->todo == newest && newest->next == other); /* the newest directory first */
    done();
}

/* --- how many names may be looked at ---------------------------------------------------------- */

/* monarch_scan_allow takes two values. The first one replaces the allowance for wanted directories,
 * unless it is 0. The second one is added to the allowance for other directories. A negative value
 * makes an allowance unlimited. The next call treats an unlimited allowance as 0. */
TEST(allowances_are_replaced_and_added_to) {
    const struct {
        /* then: the new allowances for wanted directories and for others */
        int64_t wanted, others, then[2];
    } steps[] = {{0, 0, {0, 0}},
                 {10, 5, {10, 5}},
                 {0, 5, {10, 10}},
                 {3, 0, {3, 10}},
                 {-1, 1, {ALL_NAMES, 11}},
                 {0, 0, {0, 11}},
                 {-1, -1, {ALL_NAMES, ALL_NAMES}},
                 {5, 2, {5, 2}},
                 {0, -1, {5, ALL_NAMES}},
                 {7, 0, {7, 0}}};
    make(4);
    for (unsigned i = 0; i < sizeof steps / sizeof *steps; i++) {
        monarch_scan_allow(s, steps[i].wanted, steps[i].others);
        SAME(s->may_look[1], steps[i].then[0]);
        SAME(s->may_look[0], steps[i].then[1]);
    }
    done();
}

/* Wanted directories and all other directories have separate allowances of names. Each examined
 * name is subtracted from the allowance for its kind of directory, unless this allowance is
 * unlimited. If the scan wants all directories, every name is subtracted from the allowance for
 * wanted directories. */
TEST(names_count_against_their_allowance) {
    make(4);
    struct task *plain = monarch_new_task(s, "x", 0), *wanted = monarch_new_task(s, "y", 0);
    plain->names = 3;
    wanted->names = 4;
    wanted->is_wanted = 1;
    s->may_look[0] = 3;
    s->may_look[1] = ALL_NAMES;
    SAME(monarch_may_look(s, plain), 1);
    monarch_count_looks(s, plain);
    monarch_count_looks(s, wanted);
    CHECK(s->may_look[0] == 0 && s->may_look[1] == ALL_NAMES);
    CHECK(!monarch_may_look(s, plain) && monarch_may_look(s, wanted));
    s->may_look[1] = 3;
    monarch_count_looks(s, wanted);
    SAME(s->may_look[1], -1);
    SAME(monarch_may_look(s, wanted), 0);
    s->may_look[1] = 5;
    s->is_all_wanted = 1;
    SAME(monarch_may_look(s, plain), 1);
    monarch_count_looks(s, plain);
    SAME(s->may_look[1], 2);
    s->is_all_wanted = 0;
    monarch_scan_want(s, "x", 0);
    SAME(monarch_may_look(s, plain), 1); /* its directory is wanted now */
    SAME(plain->is_wanted, 1);
    free(plain);
    free(wanted);
    done();
}

/* Tasks are taken in this order: wanted directories, wanted portions, other portions, other
 * directories. All but the first need an allowance for names. */
TEST(tasks_are_taken_by_their_urgency) {
    for (int may = 0; may < 4; may++) {
        make(4);
        monarch_scan_want(s, "w", 0);
        struct task *todo = add("x", 0), *portion = add("x", 2), *wp = add("w", 2),
                    *wanted = add("w", 0);
        s->may_look[1] = may & 1 ? 2 : 0;
        s->may_look[0] = may & 2 ? 3 : 0;
        struct task *right[] = {wanted, may & 1 ? wp : NULL, may & 2 ? portion : NULL,
                                may & 2 ? todo : NULL};
        for (int i = 0; i < 4; i++) {
            if (!right[i])
                continue;
            CHECK(may_begin(s) && monarch_has_tasks(s));
            struct task *t = monarch_take_task(s);
            CHECK(t == right[i]);
            free(t);
        }
        SAME(may_begin(s), 0);
        SAME(monarch_has_tasks(s), may < 3);
        SAME(s->may_look[1], 0);
        SAME(s->may_look[0], may & 2 ? 1 : 0);
        done();
    }
}

static int rings_of(const pthread_cond_t *condition, int signals) {
    for (int i = 0; i < 4; i++)
        if (rings[i].condition == condition)
            return signals ? rings[i].signals : rings[i].broadcasts;
    return 0;
}

/* An allowance of names wakes one idle thread for each full portion of names, and one further
 * thread. It also wakes all threads that already have names and wait for an allowance. */
TEST(an_allowance_wakes_as_many_threads_as_it_has_work_for) {
    const struct {
        int64_t wanted, others;
        int signals, broadcasts;
    } cases[] = {{1, 0, 1, 0},           {PORTION - 1, 0, 1, 0},
                 {PORTION, 0, 2, 0},     {PORTION, PORTION, 3, 0},
                 {0, 3 * PORTION, 4, 0}, {0, 4 * PORTION, 0, 1},
                 {-1, 0, 0, 1},          {0, -1, 0, 1},
                 {0, 0, 0, 0},           {4 * PORTION, 0, 0, 1}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        make(5);
        memset(rings, 0, sizeof rings);
        monarch_scan_allow(s, cases[i].wanted, cases[i].others);
        SAME(rings_of(&s->more_work, 1), cases[i].signals);
        SAME(rings_of(&s->more_work, 0), cases[i].broadcasts);
        SAME(rings_of(&s->may_go_on, 0), i != 8);
        done();
    }
    make(5);
    s->may_look[0] = -40; /* more names were examined than allowed */
    memset(rings, 0, sizeof rings);
    monarch_scan_allow(s, 1, 1);
    SAME(rings_of(&s->more_work, 1), 1);
    memset(rings, 0, sizeof rings);
    monarch_scan_want(s, "a", 0);
    CHECK(rings_of(&s->more_work, 0) == 1 && rings_of(&s->may_go_on, 0) == 1);
    done();
}

/* A thread gets the next task. Before it has to wait, it hands its batch over. It ends when no task
 * is left and no other thread can add one, or when the scan stops. */
TEST(a_thread_ends_with_the_scan) {
    make(1);
    struct monarch_batch *batch = NULL;
    struct monarch_entry e = {.kind = MONARCH_FILE};
    s->busy = 1;
    s->may_look[0] = 5;
    struct task *first = add("a", 0), *second = add("b", 0);
    monarch_report(s, &batch, &e, "x", "", 0);
    memset(rings, 0, sizeof rings);
    CHECK(monarch_next_task(s, &batch) == second && s->busy == 1);
    SAME(rings_of(&s->more_work, 1), 1); /* another thread can take the other task */
    CHECK(batch && !s->first);
    memset(rings, 0, sizeof rings);
    CHECK(monarch_next_task(s, &batch) == first && s->busy == 1);
    SAME(rings_of(&s->more_work, 1), 0);
    CHECK(!monarch_next_task(s, &batch) && s->busy == 0);
    CHECK(!batch && s->first);
    SAME(rings_of(&s->more_work, 0), 1); /* wakes the other threads, so that they end too */
    free(first);
    free(second);
    add("c", 0);
    s->busy = 1;
    s->stopping = 1;
    CHECK(!monarch_next_task(s, &batch));
    s->busy = 2; /* another thread may add tasks, but the scan stops */
    CHECK(!monarch_next_task(s, &batch) && s->busy == 1);
    done();
}

/* There are two kinds of portions of names: wanted ones and others. A thread queues its portions of
 * one kind until PORTIONS_AHEAD portions of this kind are queued for each other thread. */
TEST(others_have_enough_of_the_same_kind) {
    make(3);
    struct task *plain = monarch_new_task(s, "x", 0), *wanted = monarch_new_task(s, "x", 0);
    wanted->is_wanted = 1;
    s->portions.portions = 2 * PORTIONS_AHEAD - 1;
    SAME(monarch_others_have_enough(s, plain), 0);
    s->portions.portions++;
    SAME(monarch_others_have_enough(s, plain), 1);
    SAME(monarch_others_have_enough(s, wanted), 0);
    s->wanted_portions.portions = 2 * PORTIONS_AHEAD;
    SAME(monarch_others_have_enough(s, wanted), 1);
    s->threads = 1; /* there is no other thread */
    s->portions.portions = 0;
    SAME(monarch_others_have_enough(s, plain), 1);
    free(plain);
    free(wanted);
    done();
}

/* --- batches ---------------------------------------------------------------------------------- */

static void report(struct monarch_batch **batch, unsigned i, int is_link) {
    char path[32];
    struct monarch_entry e = {.ino = i, .kind = is_link ? MONARCH_LINK : MONARCH_FILE};
    snprintf(path, sizeof path, "d/%u", i);
    monarch_report(s, batch, &e, path, is_link ? "to/there" : "", 10 + i);
}

static void check_batch(const struct monarch_batch *b, unsigned *next) {
    for (uint64_t i = 0; i < b->count; i++, ++*next) {
        char path[32];
        snprintf(path, sizeof path, "d/%u", *next);
        CHECK(b->entries[i].ino == *next && strcmp(b->pool + b->entries[i].path, path) == 0);
        SAME(b->entries[i].path_len, strlen(path));
        if (b->entries[i].kind == MONARCH_LINK)
            CHECK(strcmp(b->pool + b->entries[i].copy_ino, "to/there") == 0);
    }
}

/* All entries arrive in order, with their paths and link targets, even if batches were merged. */
TEST(batches_bring_all_entries) {
    make(2);
    struct monarch_batch *batch = NULL;
    unsigned n = 0, seen = 0;
    int finished;
    monarch_hand_over_batch(s, &batch); /* there is none */
    for (; n < 3 * BATCH_ENTRIES / 2; n++) {
        report(&batch, n, n % 3 == 0);
        if (n % 700 == 0)
            monarch_hand_over_batch(s, &batch);
    }
    monarch_hand_over_batch(s, &batch);
    CHECK(s->batches >= 2 && s->batches <= 3);
    for (struct monarch_batch *b; (b = monarch_scan_take(s, &finished));) {
        CHECK(b->count <= BATCH_ENTRIES && b->pool_used <= BATCH_POOL);
        check_batch(b, &seen);
        monarch_batch_free(b);
    }
    CHECK(seen == n && s->batches == 0 && !finished && !s->last);
    s->threads = 0;
    monarch_scan_take(s, &finished);
    SAME(finished, 1);
    monarch_batch_free(batch);
    monarch_batch_free(NULL);
    done();
}

/* A batch takes no more entries if it might lack room for the longest path and the longest link
 * target. */
TEST(a_batch_leaves_room_for_the_longest_path) {
    make(2);
    struct monarch_batch *batch = NULL, *first;
    report(&batch, 0, 0);
    first = batch;
    batch->pool_used = BATCH_POOL - 2 * MONARCH_PATH_MAX;
    report(&batch, 1, 0);
    CHECK(batch == first && !s->first);
    batch->pool_used = BATCH_POOL - 2 * MONARCH_PATH_MAX + 1;
    report(&batch, 2, 0);
    CHECK(batch != first && s->first == first && batch->count == 1);
    batch->count = BATCH_ENTRIES;
    struct monarch_batch *second = batch;
    report(&batch, 3, 0);
    CHECK(s->first->next == second && batch->count == 1);
    monarch_batch_free(batch);
    done();
}

/* A batch is merged into another batch if the other one has room for its entries and texts, even if
 * they fill this room exactly. Otherwise both batches stay as they are. */
TEST(batches_are_merged_if_they_fit) {
    make(2);
    for (int way = 0; way < 3; way++) {
        struct monarch_batch *a = NULL, *b = NULL;
        for (unsigned i = 0; i < 5; i++)
            report(i < 3 ? &a : &b, i, i == 4);
        a->capacity = way == 1 ? 4 : 5;
        a->pool_bytes = a->pool_used + b->pool_used - (way == 2);
        unsigned seen = 0;
        SAME(merge(NULL, b), 0);
        SAME(merge(a, b), way == 0);
        SAME(a->count, way == 0 ? 5 : 3);
        SAME(b->count, way == 0 ? 0 : 2);
        SAME(b->pool_used == 0, way == 0);
        SAME(a->renames, 10); /* the number before the first look */
        check_batch(a, &seen);
        monarch_batch_free(a);
        monarch_batch_free(b);
    }
    done();
}

/* A batch that is merged from two threads' batches is as old as the older one. */
TEST(a_merged_batch_is_as_old_as_its_oldest_entry) {
    make(2);
    struct monarch_batch *a = NULL, *b = NULL;
    report(&a, 7, 0);
    report(&b, 3, 0);
    report(&b, 4, 0);
    SAME(b->renames, 13);
    SAME(merge(a, b), 1);
    SAME(a->renames, 13);
    report(&b, 9, 0);
    SAME(b->renames, 19); /* of its earlier entries nothing is left */
    monarch_batch_free(a);
    monarch_batch_free(b);
    done();
}

/* The bell rings at once for the first batch. Later, it rings at most once in BATCH_NS, unless a
 * new batch does not fit into the batch that is waiting. */
TEST(the_bell_rings_once_in_a_while) {
    make(2);
    struct monarch_batch *batch = NULL;
    report(&batch, 0, 0);
    time_ns += BATCH_NS;
    /* The batch is not handed over yet, because it is not older than BATCH_NS. */
    monarch_hand_over_in_time(s, &batch);
    CHECK(batch->count == 1 && bell == 0);
    time_ns++;
    monarch_hand_over_in_time(s, &batch);
    CHECK(!batch && bell == 1);
    for (unsigned i = 1; i < 3; i++) {
        report(&batch, i, 0);
        time_ns += i == 1 ? BATCH_NS - 1 : 1;
        monarch_hand_over_batch(s, &batch);
        CHECK(batch && batch->count == 0); /* it was merged */
        SAME(bell, i);
    }
    batch->entries[0] = (struct monarch_entry){0};
    batch->count = BATCH_ENTRIES; /* the full batch does not fit into the batch that waits */
    monarch_hand_over_batch(s, &batch);
    CHECK(!batch && bell == 3 && s->batches == 2);
    done();
}

/* Errors are counted, and the first one is kept. */
TEST(the_first_error_is_kept) {
    make(2);
    monarch_count_scan_error(s, EACCES);
    monarch_count_scan_error(s, EIO);
    CHECK(s->errors == 2 && s->error == EACCES);
    done();
}

/* A task is a directory or a portion of names, and is wanted or not. While a task of any of these
 * four kinds is left, the scan is unfinished. A wanted directory may always begin. Any other wanted
 * task needs an allowance for wanted tasks, and an unwanted task needs one for unwanted tasks. */
TEST(each_kind_of_task_is_enough) {
    for (int kind = 0; kind < 4; kind++)
        for (int may = 0; may < 3; may++) {
            make(4);
            monarch_scan_want(s, "w", 0);
            s->may_look[0] = s->may_look[1] = 0;
            CHECK(!monarch_has_tasks(s) && !may_begin(s));
            struct task *only = add(kind & 1 ? "w" : "x", kind & 2 ? 2 : 0);
            s->may_look[0] = may == 1;
            s->may_look[1] = may == 2;
            SAME(monarch_has_tasks(s), 1);
            SAME(may_begin(s), kind == 1 || may == (kind & 1 ? 2 : 1));
            if (!may_begin(s))
                s->may_look[0] = s->may_look[1] = ALL_NAMES;
            CHECK(monarch_take_task(s) == only);
            SAME(monarch_has_tasks(s), 0);
            free(only);
            done();
        }
}
