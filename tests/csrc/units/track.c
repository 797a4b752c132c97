/* Here, a thread that waits for another thread does not pause; the rounds of its wait are only
 * counted. The tests set what the other thread does, and in which round. */
#include "preload/descriptors/track.h"
#include "preload/process/proc.h"
#include "shared/sys.h"

static unsigned rounds, sleeps_from;
static struct {
    unsigned round;
    int fd;
    uint64_t word;
} other;
static uint64_t asked[3];
static void take_round(unsigned n) {
    (void)n;
    if (++rounds == other.round)
        monarch_track_table[other.fd] = other.word;
}
static int is_asleep(long call, uint64_t first, uint64_t fourth) {
    asked[0] = (uint64_t)call;
    asked[1] = first;
    asked[2] = fourth;
    return rounds >= sleeps_from;
}
/* how often a process has forgotten momentary descriptors that its parent's threads had opened */
static int forgotten;
#include "preload/process/momentary.h"
static void forget_momentary(void) {
    forgotten++;
    monarch_momentary_forget();
}
#define monarch_momentary_forget() forget_momentary()
#define sys_relax(n) take_round(n)
#define monarch_sleeps_in(call, first, fourth) is_asleep(call, first, fourth)
#include "preload/descriptors/track.c"

#include "made.h"

/* Empties the table and makes it this process's own. Also cancels the action that a test has
 * planned for another thread. */
EXPORT void track_forget(void) {
    monarch_track_mark();
    memset(monarch_track_table, 0, (highest + 1) * sizeof *monarch_track_table);
    highest = rounds = 0;
    other.round = 0;
    sleeps_from = ~0U;
    owner = (uint32_t)sys_getpid();
    *forked_mark = 1;
}
/* Makes the table belong to the process `pid`, or to no process if `pid` is 0. is_forked: whether
 * this process is a forked child of process `pid`. If not, the two processes share their memory. */
EXPORT void track_belongs(uint32_t pid, int is_forked) {
    owner = pid;
    *forked_mark = !is_forked;
}
EXPORT int track_forgotten(void) { return forgotten; }
/* Replaces the page from which the library learns that it runs in a forked child. The new page has
 * the content that the original page had before any descriptor was tracked. */
EXPORT void track_mark_again(void) {
    sys_unmap(forked_mark, 4096);
    forked_mark = NULL;
    monarch_track_mark();
}
EXPORT uint32_t track_owner(void) { return owner; }
/* Sets the round of waiting in which another thread stores `word` for `fd`. */
EXPORT void track_other(unsigned round, int fd, uint64_t word) {
    rounds = 0;
    other.round = round;
    other.fd = fd;
    other.word = word;
}
EXPORT void track_sleeps_from(unsigned round) {
    rounds = 0;
    sleeps_from = round;
}
EXPORT unsigned track_rounds(void) { return rounds; }
EXPORT uint64_t track_asked(int i) { return asked[i]; }
EXPORT uint64_t track_word(int fd) { return monarch_tracked(fd); }
EXPORT void track_set(int fd, uint64_t word) {
    monarch_track_table[fd] = word;
    highest = (unsigned)fd > highest ? (unsigned)fd : highest;
}
EXPORT void track_track(struct session *s, int fd, uint64_t entry, uint64_t flags) {
    monarch_track(s, fd, entry, flags);
}
EXPORT void track_number(struct session *s, uint32_t number, int has_fills) {
    static const void *fills;
    fills = s->fills ? s->fills : fills;
    s->number = number;
    s->fills = has_fills ? fills : NULL;
}
EXPORT int track_change(int fd, uint64_t seen, uint64_t to) {
    return monarch_track_change(fd, seen, to);
}
EXPORT void track_flag(int fd, uint64_t flag) { monarch_track_flag(fd, flag); }
EXPORT void track_flag_slow(int fd, uint64_t flag) { monarch_track_flag_slow(fd, flag); }
EXPORT void track_again(int fd, int fresh) { monarch_track_again(fd, fresh); }
EXPORT void track_untrack(int fd) { monarch_untrack(fd); }
EXPORT void track_untrack_range(unsigned first, unsigned last) {
    monarch_untrack_range(first, last);
}
EXPORT void track_untrack_seen(int fd, uint64_t seen) { monarch_untrack_seen(fd, seen); }
EXPORT void track_untrack_session(unsigned number) { monarch_untrack_session(number); }
EXPORT void track_share_all(void) { monarch_track_share_all(); }
EXPORT int track_is_mine(void) { return monarch_track_is_mine(); }
EXPORT uint32_t track_process(void) { return monarch_track_process(); }
static struct monarch_pin pin;
EXPORT int track_pin(int fd, uint64_t expected) { return monarch_track_pin(fd, expected, &pin); }
EXPORT uint64_t track_pinned(void) { return pin.word; }
EXPORT void track_unpin(int fd, uint64_t word) { monarch_track_unpin(fd, &pin, word); }
EXPORT int64_t track_seek(int fd, uint64_t tracked, int64_t by) {
    return monarch_track_seek(fd, tracked, by);
}
