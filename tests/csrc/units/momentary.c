/* In this unit, each reading of the clock advances the clock by a millisecond. The test sets what
 * another thread does, and in which round of a wait the other thread does it. */
#include "shared/sys.h"

static uint64_t millisecond(void);
static void take_round(void);
#define monarch_now_ns() millisecond()
#define sys_relax(n) take_round()
#include "preload/process/momentary.c"
#undef monarch_now_ns
#undef sys_relax

#include "made.h"

static int is_scripted, rounds, acts_in, does_fork;
static uint64_t ms;
static uint64_t millisecond(void) { return is_scripted ? ++ms * 1000000 : monarch_now_ns(); }
static void take_round(void) {
    if (!is_scripted)
        sys_relax(0);
    else if (++rounds == acts_in && does_fork)
        monarch_momentary_after_fork();
    else if (rounds == acts_in)
        monarch_momentary_end();
}
/* Begins a test (is = 1) or ends it (is = 0). At first, no momentary descriptor is open, and no
 * thread forks. */
EXPORT void momentary_script(int is) {
    is_scripted = is;
    rounds = acts_in = 0;
    ms = 1;
    monarch_momentary_forget();
}
/* In round number `round` of the next wait, another thread ends its fork (ends_fork = 1) or closes
 * its momentary descriptor (ends_fork = 0). round = 0: it does neither. */
EXPORT void momentary_other(int round, int ends_fork) {
    rounds = 0;
    acts_in = round;
    does_fork = ends_fork;
}
EXPORT void momentary_pass(int milliseconds) { ms += (uint64_t)milliseconds; }
/* momentary_begin and momentary_fork return the number of rounds for which they have waited. */
EXPORT int momentary_begin(void) {
    rounds = 0;
    monarch_momentary_begin();
    return rounds;
}
EXPORT void momentary_end(void) { monarch_momentary_end(); }
EXPORT int momentary_fork(void) {
    rounds = 0;
    monarch_momentary_before_fork();
    return rounds;
}
EXPORT void momentary_forked(void) { monarch_momentary_after_fork(); }
EXPORT void momentary_forget(void) { monarch_momentary_forget(); }
EXPORT int momentary_open(void) { return (int)get(&open_now); }
EXPORT int momentary_forking(void) { return (int)get(&forking); }
