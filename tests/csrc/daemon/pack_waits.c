/* How long a thread waits for another thread's read of a pack. */
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

/* A wait lasts LOOK_NS, also over the end of a second. Its limit must be a valid time: the C
 * library refuses any other, and the thread would look again and again without a pause. */
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
