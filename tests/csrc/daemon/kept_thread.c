/* Tests handover/kept.c: the thread that looks after the table of waiting descriptors, and what
 * wakes it. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "set_clock.h"

/* If `is_scripted` is set, wake-ups and waits of the futex are only recorded. limits: for each
 * wait, its limit [ns]; 0: none. at_wait: called in each wait. */
static int is_scripted, wakes, waits;
static long limits[8];
static void (*at_wait)(uint32_t *bell, uint32_t seen);
static long futex(long number, uint32_t *word, int how, uint32_t value,
                  const struct timespec *limit, void *none, int bits) {
    if (!is_scripted)
        return syscall(number, word, how, value, limit, none, bits);
    wakes += how == FUTEX_WAKE_PRIVATE;
    if (how == FUTEX_WAIT_PRIVATE) {
        limits[waits++] = limit ? limit->tv_sec * 1000000000L + limit->tv_nsec : 0;
        at_wait(word, value);
    }
    return 0;
}
static int lacks_memory, thread_fails;
static void *scarce_calloc(size_t n, size_t size) { return lacks_memory ? NULL : calloc(n, size); }
static size_t stack_bytes;
static int make_thread(pthread_t *thread, const pthread_attr_t *a, void *(*run)(void *),
                       void *arg) {
    pthread_attr_getstacksize(a, &stack_bytes);
    return thread_fails ? EAGAIN : pthread_create(thread, a, run, arg);
}
static struct rlimit most;
static int tell_limit(int what, struct rlimit *limit) {
    *limit = most;
    return what == RLIMIT_NOFILE ? 0 : -1;
}
static int rests_ended;
#include "engine/grant.h"
static void end_rest(struct pool *p) { rests_ended++; }
static int can_lock = 1;
#include "publish/writer.h"
static int lock_soon(struct monarch_writer *w) {
    return can_lock && pthread_mutex_lock(&w->lock) == 0;
}
/* The answer that the table gets when it tries to order a fill. */
#include "handover/handed.h"
static enum monarch_answer answers = MONARCH_NOT_YET;
static int orders;
static enum monarch_answer order_handed(struct pool *p, struct monarch_catalog *c, struct handed *h,
                                        struct job **job) {
    *job = NULL;
    orders++;
    return answers;
}
#define syscall futex
#define calloc scarce_calloc
#define pthread_create make_thread
#define pthread_setname_np(thread, name) ((void)(name))
#define getrlimit(what, limit) tell_limit(what, limit)
#define monarch_end_rest end_rest
#define monarch_lock_soon lock_soon
#define monarch_order_handed order_handed
#include "handover/kept.c"
#undef calloc
#undef syscall
#undef monarch_now_ns

#include "checks.h"

static struct pool *p;
static struct monarch_engine *e;
static struct monarch_writer *w;
static struct kept_table *t;

/* Makes a table without a thread. */
static void make(void) {
    e = make_engine(4096);
    w = monarch_writer_new();
    w->catalog = make_catalog(8);
    p = calloc(1, sizeof *p);
    p->shared = *e;
    p->shared.writer = w;
    pthread_mutex_init(&p->lock, NULL);
    t = calloc(1, sizeof *t);
    t->pool = p;
    t->most = KEPT;
    pthread_mutex_init(&t->lock, NULL);
    p->kept = t;
    is_scripted = 1;
    wakes = waits = orders = rests_ended = 0;
    answers = MONARCH_NOT_YET;
}

static void done(void) {
    if (p->kept)
        monarch_free_kept(t);
    free(w->catalog);
    monarch_writer_free(w);
    free(p);
    free_engine(e);
}

static struct handed *hand(uint64_t id) {
    struct handed *h = calloc(1, sizeof *h + 16);
    h->fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    h->id = h->claim = id;
    h->since_ns = time_ns;
    e->clients->claim[id] = monarch_claim_of(id, MONARCH_CLAIM_HANDED, time_ns);
    return h;
}

/* --- the loop --------------------------------------------------------------------------------- */

static int turns;
static void act(uint32_t *bell, uint32_t seen) {
    CHECK(bell == &t->bell);
    if (turns == 0) { /* the table is empty */
        SAME(seen, *bell);
        monarch_keep(t, hand(1), 0);
    } else if (turns == 1) { /* the program wants its descriptor closed */
        SAME(orders, 1);
        e->clients->claim[1] |= MONARCH_CLAIM_RECALLED;
    } else if (turns == 2) {
        CHECK(t->dropped == NULL && e->clients->claim[1] == 0);
    } else {
        p->shared.stopping = 1;
    }
    turns++;
}

/* While the table is empty, the thread sleeps without a limit. While a descriptor waits, the thread
 * looks at the table again and again. If a program wants its descriptor back, the thread soon
 * closes the descriptor. A ring that comes during a look is not missed. The thread ends when the
 * engine stops. */
TEST(the_thread_looks_while_descriptors_wait) {
    make();
    int before = open_descriptors();
    turns = 0;
    at_wait = act;
    SAME((long)look_after(t), 0);
    SAME(waits, 4);
    CHECK(limits[0] == 0 && limits[1] == LOOK_NS && limits[2] == LOOK_NS);
    SAME(open_descriptors(), before);
    done();
}

static void stop_now(uint32_t *bell, uint32_t seen) {
    SAME(seen + 1, *bell); /* the ring came after the word was read, so this wait ends at once */
    p->shared.stopping = 1;
}

/* The thread reads the bell's word before it looks at the table. So it does not begin to wait if
 * descriptors were dropped while it looked. */
TEST(a_ring_during_a_look_is_not_missed) {
    make();
    at_wait = stop_now;
    monarch_keep(t, hand(1), 0);
    e->clients->claim[1] |= MONARCH_CLAIM_RECALLED;
    wakes = 0;
    look_after(t); /* this look drops a descriptor, and rings the bell itself */
    CHECK(waits == 1 && wakes == 1);
    done();
}

/* --- rings ------------------------------------------------------------------------------------ */

/* The thread is woken when the first descriptor is put into the empty table, when a descriptor is
 * dropped, and when the table ends. Further descriptors do not wake the thread. */
TEST(the_thread_is_woken_when_it_must_act) {
    make();
    for (uint64_t id = 1; id < 4; id++) {
        SAME(monarch_keep(t, hand(id), 0), 1);
        SAME(wakes, 1);
        SAME(t->bell, 1);
    }
    look(t);
    SAME(wakes, 1);
    e->clients->claim[2] |= MONARCH_CLAIM_RECALLED;
    look(t);
    SAME(wakes, 2);
    close_dropped(t);
    look(t);
    SAME(wakes, 2);
    monarch_end_kept(t);
    CHECK(wakes == 3 && t->bell == 3);
    done();
}

/* monarch_look_at_kept tries to order a fill for each descriptor in the table. If the daemon's
 * policy must order the fill, the look wakes the daemon's loop, once for each file. If another
 * thread has the writer's lock, or if the table is empty or missing, the look orders nothing. A
 * look releases every lock that it has taken. */
TEST(a_look_asks_policy_for_what_is_refused) {
    make();
    monarch_look_at_kept(p);
    SAME(orders, 0);
    monarch_keep(t, hand(1), 0);
    can_lock = 0;
    pthread_mutex_lock(&w->lock); /* another thread has the lock and keeps it */
    monarch_look_at_kept(p);
    CHECK(orders == 0 && rests_ended == 0 && t->count == 1);
    SAME(pthread_mutex_trylock(&w->lock), EBUSY);
    pthread_mutex_unlock(&w->lock);
    can_lock = 1;
    answers = MONARCH_REFUSED;
    for (int i = 0; i < 2; i++) { /* policy is asked once */
        monarch_look_at_kept(p);
        CHECK(orders == i + 1 && rests_ended == 1 && t->count == 1);
        CHECK(pthread_mutex_trylock(&w->lock) == 0 && pthread_mutex_trylock(&p->lock) == 0 &&
              pthread_mutex_trylock(&t->lock) == 0);
        pthread_mutex_unlock(&w->lock);
        pthread_mutex_unlock(&p->lock);
        pthread_mutex_unlock(&t->lock);
    }
    p->kept = NULL;
    monarch_look_at_kept(p);
    SAME(orders, 2);
    p->kept = t;
    done();
}

/* --- start and end ---------------------------------------------------------------------------- */

/* A table holds at most KEPT descriptors, and at most 1 / SHARE of the descriptors that the process
 * may have open. The table's thread has a small stack, and ends when the engine stops. */
TEST(a_table_has_a_thread_until_it_ends) {
    const rlim_t limits_of[] = {SHARE - 1, SHARE, SHARE * KEPT - 1, SHARE * KEPT, RLIM_INFINITY};
    const unsigned right[] = {0, 1, KEPT - 1, KEPT, KEPT};
    for (int i = 0; i < 5; i++) {
        make();
        is_scripted = 0;
        monarch_free_kept(t);
        most.rlim_cur = limits_of[i];
        t = p->kept = monarch_new_kept(p);
        CHECK(t && t->pool == p && t->most == right[i]);
        SAME(stack_bytes, STACK_BYTES);
        int before = open_descriptors();
        if (right[i])
            monarch_keep(t, hand(1), 0); /* the descriptor is closed with the table */
        struct timespec soon = {0}, limit = monarch_join_limit(20000);
        SAME(monarch_join_kept(t, &soon), 0);
        __atomic_store_n(&p->shared.stopping, 1, __ATOMIC_SEQ_CST);
        monarch_end_kept(t);
        SAME(monarch_join_kept(t, &limit), 1);
        done();
        SAME(open_descriptors(), before);
    }
}

/* If there is no memory for the table, or its thread cannot be started, no table is made and
 * nothing is left behind. */
TEST(a_table_starts_or_leaves_nothing) {
    make();
    for (int way = 0; way < 2; way++) {
        lacks_memory = way == 0;
        thread_fails = way == 1;
        CHECK(!monarch_new_kept(p));
    }
    lacks_memory = thread_fails = 0;
    done();
}

/* If a descriptor has an entry number, an order takes it only if both have the same entry number
 * and the same inode number. By now, the entry may be that of a new file, which has another inode
 * number. */
TEST(an_order_takes_a_descriptor_of_its_file) {
    make();
    struct handed *h = hand(1);
    h->entry.ino = 50;
    monarch_keep(t, h, 0);
    for (uint64_t ino = 49; ino < 52; ino++) {
        struct job job = {.handed = -1, .peer = {-1}, .result.id = 1, .entry.ino = ino};
        job.result.kind = MONARCH_FILL;
        SAME(find(t, &job), ino == 50 ? 0 : -1);
        monarch_note_kept(p, &job);
        SAME(job.is_kept, ino == 50);
    }
    done();
}
