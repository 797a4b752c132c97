#include <pthread.h>

#include "peers/connection.h"

/* In the tests, these links replace those of client.c. Their answers come from `script`. */
struct monarch_peer_link {
    int number, is_closed, is_cut;
    uint64_t frames, tag;
};
static int answer(struct monarch_peer_link *l, struct monarch_peer_get *gets, uint64_t n);
static void close_it(struct monarch_peer_link *l) { l->is_closed++; }
static void cut(struct monarch_peer_link *l) { l->is_cut++; }
static uint64_t frames_of(const struct monarch_peer_link *l) { return l->frames; }
static int request(struct monarch_peer_link *l, const struct monarch_peer_get *g, uint64_t *tag) {
    return *tag = l->tag++, 0;
}
/* Replacements for the clock and for the waits on condition variables. If `steps` is set, the clock
 * stands still, and a wait only records its deadline in `ends` and takes the next step. Otherwise,
 * the real clock is read and the wait is real. */
struct step;
static const struct step *steps;
static uint64_t time_ns, ends[8];
static int waits;
static uint64_t clock_ns(void) { return steps ? time_ns : monarch_now_ns(); }
static int timed_wait(pthread_cond_t *condition, pthread_mutex_t *lock, const struct timespec *end);
#define monarch_now_ns clock_ns
#define pthread_cond_timedwait timed_wait
/* signals: how often one thread was woken from a wait for a link. broadcasts: how often all threads
 * were woken. */
static int signals, broadcasts;
#define pthread_cond_broadcast(condition) (broadcasts++, pthread_cond_broadcast(condition))
#define pthread_cond_signal(condition) (signals++, pthread_cond_signal(condition))
#define monarch_peer_link_close(l) close_it(l)
#define monarch_peer_link_cut(l) cut(l)
#define monarch_peer_link_frames(l) frames_of(l)
#define monarch_peer_request(l, g, tag) request(l, g, tag)
#define monarch_peer_fetch(l, gets, n, buffer, arrived, arg) answer(l, gets, n)
#define monarch_peer_take(l, gets, tag, buffer, arrived, arg) answer(l, gets, 1)
#include "peers/peer.c"
#undef monarch_now_ns
#undef pthread_cond_timedwait

#include "checks.h"

#define LINKS 64

static struct monarch_peer_link links[LINKS];
static int made;
static peer *p;
/* script: how each of the next fetches ends. Fetches beyond the end of the script succeed. last:
 * the request of the last fetch. */
static struct {
    unsigned status;
    int frames;
} script[64];
static int scripted, fetches;
static struct monarch_peer_get last;
static uint32_t reports[16];
static int reported, refuses;

/* If not NULL: when the next fetch starts, this use joins the line for the link of that fetch. */
static struct use *joins;

static int answer(struct monarch_peer_link *l, struct monarch_peer_get *gets, uint64_t n) {
    CHECK(l && !l->is_closed);
    if (joins)
        p->uses->follower = joins;
    joins = NULL;
    last = gets[0];
    unsigned status = fetches < scripted ? script[fetches].status : MONARCH_PEER_OK;
    l->frames += fetches < scripted ? (uint64_t)script[fetches].frames : 1;
    fetches++;
    for (uint64_t i = 0; i < n; i++)
        gets[i].status = l->is_cut ? MONARCH_PEER_CUT : status;
    return !l->is_cut && (status < MONARCH_PEER_TIMEOUT || status >= MONARCH_PEER_MOVED) ? 0 : -1;
}

static struct monarch_peer_link *connect_it(void *arg, uint32_t *status) {
    CHECK(arg == links && made < LINKS);
    *status = MONARCH_PEER_OTHER_NODE;
    if (refuses)
        return NULL;
    links[made].number = made;
    return &links[made++];
}

static void report(void *arg, uint32_t status, uint64_t began_ns) {
    CHECK(arg == links && reported < 16 && (began_ns > 0) == (status != MONARCH_PEER_OK));
    reports[reported++] = status;
}

static void make(void) {
    p = monarch_peer_new(connect_it, report, links);
    CHECK(p);
    memset(links, 0, sizeof links);
    made = scripted = fetches = reported = refuses = 0;
}

static void then(unsigned status, int frames) {
    script[scripted].status = status;
    script[scripted++].frames = frames;
}

static int ask_for(struct monarch_peer_get *gets, uint64_t n) {
    return monarch_peer_ask(p, gets, n, NULL, NULL, NULL);
}

static int ask_small(void) {
    struct monarch_peer_get g = {.length = 100};
    int r = ask_for(&g, 1);
    last.status = g.status;
    return r;
}

/* Returns which links are closed, one bit for each link. */
static unsigned closed(void) {
    unsigned all = 0;
    for (int i = 0; i < made; i++)
        all |= (unsigned)links[i].is_closed << i;
    return all;
}

/* A link that works is used again. */
TEST(a_link_that_works_is_kept) {
    make();
    for (int i = 0; i < 5; i++)
        SAME(ask_small(), 0);
    CHECK(made == 1 && fetches == 5 && reported == 0 && closed() == 0);
    SAME(p->idle, 1);
    monarch_peer_free(p);
    SAME(closed(), 1);
}

/* At most IDLE_LINKS idle links are kept. */
TEST(idle_links_beyond_the_limit_are_closed) {
    make();
    for (unsigned i = 0; i < IDLE_LINKS + 2; i++)
        note_success(p, &links[made++]);
    SAME(p->idle, IDLE_LINKS);
    SAME(closed(), 3U << IDLE_LINKS);
    note_success(p, NULL);
    SAME(p->idle, IDLE_LINKS);
    monarch_peer_free(p);
    SAME(closed(), (4U << IDLE_LINKS) - 1);
}

/* A link that the caller has connected is used like any other idle link. A thread that waits for a
 * link may get it too. The peer counts as one that has worked. */
TEST(a_link_from_the_caller_is_used) {
    make();
    signals = 0;
    monarch_peer_add_link(p, &links[made++]);
    CHECK(signals == 1 && p->idle == 1 && !monarch_peer_is_starting(p));
    SAME(ask_small(), 0);
    CHECK(made == 1 && fetches == 1 && reported == 0);
    monarch_peer_free(p);
}

/* If the peer has closed an idle link since the link's last use, the link is replaced. This is no
 * failure, so nothing is reported. All other idle links are closed too, because they have been idle
 * for at least as long. */
TEST(a_link_that_was_closed_meanwhile_is_replaced) {
    make();
    note_success(p, &links[made++]);
    note_success(p, &links[made++]);
    then(MONARCH_PEER_CUT, 0);
    SAME(ask_small(), 0);
    CHECK(made == 3 && fetches == 2 && reported == 0 && closed() == 3);
    CHECK(p->idle == 1 && p->link[0] == &links[2]);
    monarch_peer_free(p);
}

/* If a link breaks while an answer arrives, or if the answer is late or forged, the peer has
 * failed. The failure is reported, and so is the peer's next success. */
TEST(a_failure_and_the_next_success_are_reported) {
    const unsigned status[] = {MONARCH_PEER_CUT, MONARCH_PEER_TIMEOUT, MONARCH_PEER_FORGED};
    for (int i = 0; i < 3; i++)
        for (int is_new = 0; is_new < 2; is_new++) {
            make();
            if (!is_new)
                note_success(p, &links[made++]);
            then(status[i], i == 0 && !is_new);
            SAME(ask_small(), -1);
            SAME(last.status, status[i]);
            CHECK(reported == 1 && reports[0] == status[i]);
            CHECK(made == 1 && closed() == 1 && p->idle == 0);
            SAME(ask_small(), 0);
            CHECK(reported == 2 && reports[1] == MONARCH_PEER_OK);
            SAME(ask_small(), 0);
            SAME(reported, 2);
            monarch_peer_free(p);
        }
}

/* If this node lacks room for the bytes, the peer has not failed, and nothing is reported. */
TEST(a_lack_of_room_here_is_not_reported) {
    make();
    then(MONARCH_PEER_NO_ROOM, 1);
    SAME(ask_small(), -1);
    SAME(reported, 0);
    SAME(last.status, MONARCH_PEER_NO_ROOM);
    monarch_peer_free(p);
}

/* If no link to the peer can be made, the status of every range shows the reason. The next success
 * is reported. */
TEST(a_peer_that_cannot_be_reached_says_why) {
    make();
    struct monarch_peer_get gets[2] = {{.length = 1, .received = 7, .error = 7},
                                       {.length = 1, .received = 7, .error = 7}};
    refuses = 1;
    SAME(ask_for(gets, 2), -1);
    for (int i = 0; i < 2; i++)
        CHECK(gets[i].status == MONARCH_PEER_OTHER_NODE && !gets[i].received && !gets[i].error);
    SAME(reported, 0);
    refuses = 0;
    SAME(ask_small(), 0);
    CHECK(reported == 1 && reports[0] == MONARCH_PEER_OK);
    monarch_peer_free(p);
}

/* If a link breaks, the reported reason is the status of one of the requested ranges. A status that
 * is more specific than CUT is preferred to CUT. */
TEST(the_most_specific_status_is_the_reason) {
    for (unsigned status = 0; status <= MONARCH_PEER_LATER; status++) {
        struct monarch_peer_get gets[2] = {{.status = MONARCH_PEER_CUT}, {.status = status}};
        int is_specific = status == MONARCH_PEER_TIMEOUT || status == MONARCH_PEER_WRONG_BYTES ||
                          status == MONARCH_PEER_NO_ROOM || status == MONARCH_PEER_FORGED;
        SAME(reason(gets, 2), is_specific ? status : MONARCH_PEER_CUT);
        SAME(reason(gets, 1), MONARCH_PEER_CUT);
    }
}

/* If a block arrives with wrong bytes, the peer is made to check its copy. For this, one byte of
 * the block is requested over a new link, with a note that the block is doubted. Then this link is
 * closed. */
TEST(a_peer_checks_a_block_that_arrived_wrong) {
    make();
    struct monarch_peer_get g = {
        .first = 1000, .length = 5000, .received = 300, .to = 7, .path_hash = 9};
    then(MONARCH_PEER_WRONG_BYTES, 3);
    SAME(ask_for(&g, 1), -1);
    SAME(g.status, MONARCH_PEER_WRONG_BYTES);
    CHECK(fetches == 2 && made == 2 && closed() == 3);
    CHECK(last.first == 1300 && last.length == 1 && last.is_doubted && last.memory);
    CHECK(last.path_hash == 9);
    CHECK(reported == 1 && reports[0] == MONARCH_PEER_WRONG_BYTES);
    monarch_peer_free(p);
}

/* After monarch_peer_hang_up, no request is sent to the peer, and no failure is reported. Fetches
 * that are already running are cut off. */
TEST(a_hang_up_ends_all_requests) {
    make();
    struct use running = {.link = &links[made++]};
    enter_locked(p, &running);
    monarch_peer_hang_up(p);
    SAME(links[0].is_cut, 1);
    leave(p, &running, 0);
    SAME(ask_small(), -1);
    CHECK(last.status == MONARCH_PEER_CUT && made == 1 && fetches == 0 && reported == 0);
    p->link[p->idle++] = &links[made++];
    SAME(ask_small(), -1); /* the idle link is cut before it is used */
    CHECK(links[1].is_cut && reported == 0);
    monarch_peer_free(p);
}

/* A peer that has not worked yet counts as starting for START_NS after its struct was made. */
TEST(a_new_peer_may_be_starting) {
    make();
    SAME(monarch_peer_is_starting(p), 1);
    p->made_ns = monarch_now_ns() - START_NS;
    SAME(monarch_peer_is_starting(p), 0);
    p->made_ns = monarch_now_ns();
    SAME(ask_small(), 0);
    SAME(monarch_peer_is_starting(p), 0);
    monarch_peer_free(p);
}

/* --- waits for links -------------------------------------------------------------------------- */

static void *get_link(void *arg) {
    *(struct monarch_peer_link **)arg = acquire_link(p, 1);
    return NULL;
}

static pthread_t start_to_wait(struct monarch_peer_link **to) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, get_link, to) == 0);
    return thread;
}

/* A thread uses an idle link. If no link is idle, and no other thread has a link, the thread
 * connects a new link at once. */
TEST(a_thread_waits_only_for_links_in_use) {
    make();
    p->connect_ns = UINT64_MAX / 64;
    CHECK(!acquire_link(p, 1) && p->connecting == 1 && p->in_use == 1);
    uint32_t status;
    broadcasts = 0;
    CHECK(connect_link(p, &status) == &links[0] && !p->connecting);
    SAME(broadcasts, 1); /* threads that wait for the outcome learn of it */
    CHECK(p->connect_ns < UINT64_MAX / 64);
    note_success(p, &links[0]);
    release_link(p);
    CHECK(acquire_link(p, 1) == &links[0] && p->in_use == 1 && !p->connecting && !p->idle);
    CHECK(!acquire_link(p, 0) && p->connecting == 1 && p->in_use == 2); /* it does not wait */
    monarch_peer_free(p);
}

/* A waiting thread gets the link that another thread has used. If a third thread is connecting a
 * link, the waiting thread continues to wait, however long the last connect took. The time of such
 * a wait is not counted. */
TEST(a_thread_gets_the_link_of_another) {
    for (int is_connecting = 0; is_connecting < 2; is_connecting++) {
        make();
        struct monarch_peer_link *got = NULL;
        p->in_use = 1;
        p->connecting = (unsigned)is_connecting;
        p->connect_ns = is_connecting ? 0 : LINK_NS;
        pthread_t thread = start_to_wait(&got);
        note_success(p, &links[made++]);
        signals = 0;
        release_link(p);
        SAME(signals, 1);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(got == &links[0] && p->in_use == 1 && p->idle == 0);
        CHECK(p->connecting == (unsigned)is_connecting);
        CHECK(!is_connecting || p->waited_ns < LINK_NS / 2);
        monarch_peer_free(p);
    }
}

/* A wait for a link. after_ns: how long the wait lasts. is_idle: whether one more link is idle
 * after the wait. The other fields: the values that the peer's fields have after the wait. */
struct step {
    uint64_t after_ns, connect_ns;
    unsigned connecting, in_use;
    int is_idle;
};

static int timed_wait(pthread_cond_t *condition, pthread_mutex_t *lock,
                      const struct timespec *end) {
    if (!steps)
        return pthread_cond_timedwait(condition, lock, end);
    const struct step *s = &steps[waits];
    CHECK(waits < 8 && s->after_ns);
    ends[waits++] = (uint64_t)end->tv_sec * 1000000000 + (uint64_t)end->tv_nsec - START_NS;
    time_ns += s->after_ns;
    p->connect_ns = s->connect_ns;
    p->connecting = s->connecting;
    p->in_use = s->in_use;
    if (s->is_idle)
        p->link[p->idle++] = &links[made++];
    return 0;
}

/* Threads wait for a link until their waits together have lasted WAITS_PER_CONNECT times as long as
 * the last connect took. While another thread connects a link, they wait for the end of the
 * connect, and this time does not count. A thread waits at most LINK_NS, and only while a link is
 * in use. */
TEST(a_thread_connects_after_enough_waits) {
    const uint64_t ms = 1000000, n = WAITS_PER_CONNECT;
    const struct {
        uint64_t connect_ns, waited_ns;
        unsigned connecting, in_use;
        struct step steps[3];
        uint64_t ends[3], sum_ns;
    } cases[] = {
        {2 * ms, 0, 0, 1, {{2 * n * ms, 2 * ms, 0, 1, 0}}, {2 * n * ms}, 2 * n * ms},
        {2 * ms, 5 * ms, 0, 1, {{9 * ms, 2 * ms, 0, 1, 1}}, {2 * n * ms - 5 * ms}, 14 * ms},
        {2 * ms, 2 * n * ms, 0, 1, {{0}}, {0}, 2 * n * ms},
        {2 * ms, 3 * n * ms, 0, 1, {{0}}, {0}, 3 * n * ms},
        {2 * ms, 0, 0, 0, {{0}}, {0}, 0}, /* no link is in use */
        {2 * ms, 0, 0, 1, {{3 * ms, 2 * ms, 0, 0, 0}}, {2 * n * ms}, 3 * ms}, /* no longer */
        {LINK_NS, 0, 0, 1, {{LINK_NS, LINK_NS, 0, 1, 0}}, {LINK_NS}, LINK_NS},
        /* the first connect takes 40 ms; then a link is free after 3 ms */
        {0,
         0,
         1,
         1,
         {{40 * ms, 1 * ms, 0, 1, 0}, {3 * ms, 1 * ms, 0, 1, 1}},
         {LINK_NS, 40 * ms + n * ms},
         3 * ms},
        {0, 0, 1, 1, {{LINK_NS, 0, 1, 1, 0}}, {LINK_NS}, 0}, /* it connects nevertheless */
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        make();
        waits = 0;
        time_ns = START_NS;
        steps = cases[i].steps;
        p->connect_ns = cases[i].connect_ns;
        p->waited_ns = cases[i].waited_ns;
        p->connecting = cases[i].connecting;
        p->in_use = cases[i].in_use;
        await_link_locked(p);
        for (int wait = 0; wait < 3; wait++)
            SAME(wait < waits ? ends[wait] : 0, cases[i].ends[wait]);
        SAME(p->waited_ns, cases[i].sum_ns);
        steps = NULL;
        p->idle = 0;
        monarch_peer_free(p);
    }
}

/* A small request waits for the links of other threads. A large request that has a slot waits only
 * if it can join the line for one of these links. When a thread connects a link, the sum of the
 * waits is reset to 0. */
TEST(small_requests_wait_for_links) {
    for (int is_small = 0; is_small < 2; is_small++) {
        make();
        struct monarch_peer_get g = {.length = is_small ? LARGE_BYTES - 1 : LARGE_BYTES};
        const struct step wait[] = {{WAITS_PER_CONNECT * 1000, 1000, 0, 1, 0}};
        waits = 0;
        time_ns = START_NS;
        steps = wait;
        p->in_use = 1;
        p->connect_ns = 1000;
        SAME(ask_for(&g, 1), 0);
        CHECK(waits == is_small && made == 1 && p->waited_ns == 0);
        steps = NULL;
        monarch_peer_free(p);
    }
}

/* Each request releases its link, whether the request works, fails, replaces a link that was
 * closed, or cannot connect. If it passes the link on to another request, the link still counts as
 * in use. */
TEST(each_request_releases_its_link) {
    for (int way = 0; way < 6; way++) {
        make();
        struct use second = {.is_following = 1};
        if (way == 1)
            then(MONARCH_PEER_TIMEOUT, 1);
        if (way == 2 || way == 3)
            note_success(p, &links[made++]);
        if (way == 2)
            then(MONARCH_PEER_CUT, 0);
        if (way == 4)
            refuses = 1;
        if (way == 5)
            joins = &second;
        ask_small();
        CHECK(p->in_use == (way == 5) && p->connecting == 0);
        if (way == 5)
            leave(p, &second, 1);
        monarch_peer_free(p);
    }
}

/* --- large answers ---------------------------------------------------------------------------- */

/* A request is large if it asks for LARGE_BYTES or more, not counting ranges that a reader waits
 * for. Only large requests take a slot. */
TEST(large_answers_take_a_slot) {
    const struct {
        uint64_t first, second;
        uint32_t awaited, is_large;
    } cases[] = {{LARGE_BYTES - 1, 0, 0, 0},           {LARGE_BYTES, 0, 0, 1},
                 {LARGE_BYTES - 1, 1, 0, 1},           {LARGE_BYTES, 0, 1, 0},
                 {LARGE_BYTES, LARGE_BYTES - 1, 1, 0}, {LARGE_BYTES, LARGE_BYTES, 1, 1}};
    for (unsigned i = 0; i < 6; i++) {
        make();
        struct monarch_peer_get gets[2] = {
            {.length = cases[i].first, .is_awaited = cases[i].awaited},
            {.length = cases[i].second}};
        p->came_ns = 0;
        SAME(ask_for(gets, 2), 0);
        SAME(p->came_ns > 0, cases[i].is_large);
        SAME(p->slots, 0);
        monarch_peer_free(p);
    }
}

/* There are LARGE_AT_ONCE slots. A released slot is passed to a thread that already waits, if there
 * is one. A thread that comes later does not get it. */
TEST(slots_go_to_those_that_wait) {
    make();
    for (unsigned i = 0; i < LARGE_AT_ONCE; i++)
        SAME(acquire_slot(p), 1);
    SAME(p->slots, LARGE_AT_ONCE);
    p->waiting = 1; /* a thread that is just about to wait */
    release_slot(p, 0);
    CHECK(p->passed == 1 && p->slots == LARGE_AT_ONCE && p->came_ns == 0);
    release_slot(p, 1);
    CHECK(p->passed == 1 && p->slots == LARGE_AT_ONCE - 1 && p->came_ns > 0);
    p->waiting = p->passed = 0;
    SAME(acquire_slot(p), 1);
    for (unsigned i = 0; i < LARGE_AT_ONCE; i++)
        release_slot(p, 1);
    CHECK(p->slots == 0 && p->waiting == 0 && p->passed == 0);
    monarch_peer_free(p);
}

static void *take_slot(void *arg) {
    *(int *)arg = acquire_slot(p);
    return NULL;
}

/* A slot that is passed on is taken by exactly one waiting thread. */
TEST(a_slot_that_is_passed_is_taken) {
    make();
    for (unsigned i = 0; i < LARGE_AT_ONCE; i++)
        acquire_slot(p);
    pthread_t thread;
    int has = -1;
    CHECK(pthread_create(&thread, NULL, take_slot, &has) == 0);
    for (unsigned waiting = 0; !waiting;) {
        pthread_mutex_lock(&p->lock);
        waiting = p->waiting;
        p->came_ns = monarch_now_ns(); /* answers come, so the wait goes on */
        pthread_mutex_unlock(&p->lock);
    }
    release_slot(p, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(has == 1 && p->slots == LARGE_AT_ONCE && !p->waiting && !p->passed);
    monarch_peer_free(p);
}

/* If no answer comes from the peer for SLOT_NS, a thread that waits for a slot goes on without a
 * slot. */
TEST(a_thread_goes_on_without_a_slot) {
    make();
    p->slots = LARGE_AT_ONCE;
    uint64_t began = monarch_now_ns();
    SAME(acquire_slot(p), 0);
    CHECK(monarch_now_ns() - began >= SLOT_NS);
    CHECK(p->waiting == 0 && p->slots == LARGE_AT_ONCE && p->passed == 0);
    monarch_peer_free(p);
}

/* --- threads in line for a link --------------------------------------------------------------- */

/* Threads may wait in line for a link that another thread uses. This is possible only if that
 * thread permits it and has sent its request. A thread joins the end of the first line that has
 * room. */
TEST(a_thread_joins_a_line_with_room) {
    make();
    struct use busy = {.can_be_followed = 0, .has_asked = 1},
               silent = {.can_be_followed = 1, .has_asked = 0}, follower = {0},
               full = {.can_be_followed = 1, .has_asked = 1, .follower = &follower},
               open_one = {.can_be_followed = 1, .has_asked = 1}, *first;
    CHECK(!find_line(p, &first));
    struct use *all[] = {&open_one, &busy, &silent, &full};
    for (int i = 1; i < 4; i++)
        enter_locked(p, all[i]);
    CHECK(!find_line(p, &first));
    enter_locked(p, all[0]);
    enter_locked(p, &(struct use){.can_be_followed = 0, .has_asked = 1});
    CHECK(find_line(p, &first) == &open_one && first == &open_one);
    monarch_peer_free(p);
}

/* While a thread uses a link, other threads may wait in line for the link. If the link works when
 * the thread leaves it, the first thread in line gets it. If the link has failed, all threads in
 * line stop waiting and get no link. */
TEST(a_link_is_passed_to_its_follower) {
    for (int works = 0; works < 2; works++) {
        make();
        struct use third = {.is_following = 1}, second = {.is_following = 1, .follower = &third},
                   first = {.link = &links[made++], .follower = &second},
                   other = {.link = &links[made++]};
        enter_locked(p, &other);
        enter_locked(p, &first);
        leave(p, &first, works);
        CHECK(second.is_following == 0 && third.is_following == works);
        CHECK(second.link == (works ? &links[0] : NULL) && second.can_be_followed == works);
        CHECK(first.link == (works ? NULL : &links[0]));
        CHECK(p->uses == (works ? &second : &other) && !other.next);
        leave(p, &other, 1);
        CHECK(p->uses == (works ? &second : NULL) && other.link == &links[1]);
        monarch_peer_free(p);
    }
}

/* If a thread waits in line for the link, this thread gets the link after the answer, and the link
 * does not become idle. If the link breaks, it is closed, and the thread in line gets no link. */
TEST(a_follower_gets_the_link_only_if_it_works) {
    for (int works = 0; works < 2; works++) {
        make();
        struct use second = {.is_following = 1};
        joins = &second;
        then(works ? MONARCH_PEER_OK : MONARCH_PEER_CUT, 1);
        SAME(ask_small(), works - 1);
        CHECK(second.link == (works ? &links[0] : NULL) && !second.is_following);
        CHECK(p->idle == 0 && closed() == !works);
        if (works)
            leave(p, &second, 1);
        CHECK(!p->uses);
        monarch_peer_free(p);
    }
}
