/* Tests copy/pack.c: a pack that ends too early, the first member of a pack, and orders that ask a
 * peer first. Also tests the time limit of a thread that waits while another thread reads. */
#include <pthread.h>
#include <time.h>

static struct timespec now, waited;
static int tell_time(clockid_t clock, struct timespec *t) {
    *t = now;
    return clock == CLOCK_REALTIME ? 0 : clock_gettime(clock, t);
}
static int wait_at(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *until) {
    waited = *until;
    return 0;
}
#define clock_gettime tell_time
#define pthread_cond_timedwait wait_at
#include "copy/pack.c"
#undef clock_gettime
#undef pthread_cond_timedwait

#include "checks.h"

/* A thread waits at most LOOK_NS, even if a new second begins during the wait. The limit of the
 * wait must be a valid time, whose nanoseconds are below 10^9. The C library refuses an
 * invalid time at once, so the thread would look again and again without a pause. */
TEST(a_wait_has_a_valid_limit) {
    const long second = 1000000000;
    const long parts[] = {0, 1, second - LOOK_NS - 1, second - LOOK_NS, second - 1};
    static struct pack p;
    for (int i = 0; i < 5; i++) {
        now = (struct timespec){100, parts[i]};
        await_change(&p);
        CHECK(waited.tv_nsec >= 0 && waited.tv_nsec < second);
        SAME((waited.tv_sec - 100) * second + waited.tv_nsec, parts[i] + LOOK_NS);
    }
}

static struct monarch_engine *e;
static struct pack *p;
static int file;
static char buffer[MONARCH_CHUNK];

/* Makes a pack of two members of 100 bytes. `hash` is the hash of the first member's name. */
static void make(uint64_t hash) {
    struct monarch_member members[] = {{.hash = hash, .size = 100},
                                       {.hash = hash + 1, .size = 100, .offset = 100}};
    struct statx x;
    e = make_engine(MONARCH_CHUNK);
    e->control->reads_everything = 1;
    unlink("pack");
    file = make_file("pack", 200, 5);
    CHECK(identity_of(file, &x) == 0);
    SAME(monarch_engine_pack(e, 0, file, 200, ns(x.stx_mtime), 2, members), 0);
    p = e->pack[0];
}

static void done(void) {
    monarch_pack_free(p);
    close(file);
    free_engine(e);
}

/* A pack that has become empty, or too short for its members, counts as changed. None of the bytes
 * that were read from it is used. */
TEST(a_pack_that_ends_early_has_changed) {
    const off_t sizes[] = {0, 1, 99, 199};
    for (int i = 0; i < 4; i++) {
        make(7);
        struct job job = {.pack = p, .member = 1, .handed = -1, .peer = {-1}};
        await_member(p, 1);
        CHECK(ftruncate(file, sizes[i]) == 0);
        SAME(monarch_pack_read(e, &job, buffer), -1);
        SAME(monarch_engine_pack_error(e, 0), ESTALE);
        done();
    }
}

/* Member 0, the first member of a pack, is read from the pack like every other member. It
 * immediately counts as ordered, unless its order asks a peer first. Peer 0 is a peer like every
 * other peer. */
TEST(the_first_member_is_one_of_them) {
    const int peers[] = {-1, 0, 1};
    for (int i = 0; i < 3; i++) {
        make(monarch_xxh3("a/small", 7));
        struct job *job = calloc(1, sizeof *job + 8);
        strcpy(job->path, "a/small");
        job->entry = (struct monarch_entry){.kind = MONARCH_FILE, .size = 100, .path_len = 7};
        job->entry.mode = S_IFREG | 0400;
        job->peer[0] = peers[i];
        job->handed = -1;
        monarch_pack_meet(e, job);
        CHECK(job->pack == p && job->member == 0);
        SAME(p->is_ordered[0], peers[i] < 0);
        SAME(monarch_pack_read(e, job, buffer), 0);
        check_bytes(5, 0, 0, buffer, 100);
        free(job);
        done();
    }
}
