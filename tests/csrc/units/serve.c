/* In this unit, the functions that serve.c calls can be replaced by functions that only record
 * their calls and return what the test has set. The record shows what the library does with a file
 * that was opened at the source. */
#include <errno.h>

#include "preload/descriptors/track.h"
#include "preload/fill/handover.h"
#include "preload/fill/progress.h"
#include "preload/fill/request.h"
#include "steps.h"

static int is_scripted;
static struct {
    int is_direct, is_at_hand, can_track, is_unmet;
    uint64_t tracked;
} answer;
static void progress(struct session *s, uint64_t id, uint64_t n) {
    if (is_scripted)
        step("progress %d", (int)n);
    else
        monarch_progress(s, id, n);
}
static void progress_begin_again(uint64_t id) {
    if (is_scripted)
        step("again");
    else
        monarch_progress_begin_again(id);
}
static int source_is_at_hand(void) {
    return is_scripted ? answer.is_at_hand : monarch_source_is_at_hand();
}
static int is_read_direct(const struct session *s, const struct monarch_entry *e, uint64_t id,
                          uint64_t word) {
    return is_scripted ? answer.is_direct : monarch_is_read_direct(s, e, id, word);
}
static void fill_instead(struct session *s, const struct monarch_entry *e, uint64_t id) {
    if (is_scripted)
        step("fill");
    else
        monarch_fill_instead(s, e, id);
    errno = is_scripted ? EIO : errno;
}
static int read_unmet(struct session *s, int fd, const struct stat *st) {
    if (!is_scripted)
        return monarch_read_unmet(s, fd, st);
    step("unmet");
    return answer.is_unmet;
}
static void tell_unknown(struct session *s, int fd, int is_part) {
    if (is_scripted)
        step("told%s", is_part ? " of a part" : "");
    else
        monarch_tell_unknown(s, fd, is_part);
}
static void track(struct session *s, int fd, uint64_t id, uint64_t flags) {
    if (!is_scripted) {
        monarch_track(s, fd, id, flags);
        return;
    }
    step("track%s", flags == TRACK_DIRECT ? " direct" : flags ? " otherwise" : "");
    answer.tracked = answer.can_track ? 1ULL << 32 | flags : 0;
}
static uint64_t tracked(int fd) { return is_scripted ? answer.tracked : monarch_tracked(fd); }
static void count_source(struct session *s, uint64_t n) {
    if (is_scripted)
        step("count %d", (int)n);
    else
        monarch_count_source(s, n);
}
#define monarch_progress(s, id, n) progress(s, id, n)
#define monarch_progress_begin_again(id) progress_begin_again(id)
#define monarch_source_is_at_hand() source_is_at_hand()
#define monarch_is_read_direct(s, e, id, word) is_read_direct(s, e, id, word)
#define monarch_fill_instead(s, e, id) fill_instead(s, e, id)
#define monarch_read_unmet(s, fd, st) read_unmet(s, fd, st)
#define monarch_tell_unknown(s, fd, is_part) tell_unknown(s, fd, is_part)
#define monarch_track(s, fd, id, flags) track(s, fd, id, flags)
#define monarch_tracked(fd) tracked(fd)
#define monarch_count_source(s, n) count_source(s, n)
#include "preload/fill/serve.c"

#include "made.h"

EXPORT void serve_answers(int is_direct, int is_at_hand, int can_track, int is_unmet) {
    answer.is_direct = is_direct;
    answer.is_at_hand = is_at_hand;
    answer.can_track = can_track;
    answer.is_unmet = is_unmet;
}
static struct monarch_opening opening_of(struct session *s, int64_t id, int is_claimed,
                                         int is_alone) {
    return (struct monarch_opening){.entry = id < 0 ? NULL : &monarch_entries(s->catalog)[id],
                                    .id = id < 0 ? MONARCH_UNKNOWN : id,
                                    .claimed = is_claimed,
                                    .is_alone = is_alone};
}
/* Acts as if an open that took 7 ns had opened the file of the entry `id` at the source as
 * descriptor `fd`. id = -1: the file has no entry. */
EXPORT void serve_opened(struct session *s, int64_t id, int is_claimed, int is_alone, int flags,
                         int fd) {
    struct monarch_opening o = opening_of(s, id, is_claimed, is_alone);
    steps[0] = 0;
    answer.tracked = 0;
    is_scripted = 1;
    monarch_opened_source(s, &o, flags, 7, fd);
    is_scripted = 0;
}
/* Acts as if the open at the source had failed. Returns whether errno is unchanged. */
EXPORT int serve_not_opened(struct session *s, int64_t id, int is_claimed) {
    struct monarch_opening o = opening_of(s, id, is_claimed, 0);
    steps[0] = 0;
    is_scripted = 1;
    errno = 54321;
    monarch_not_opened(s, &o);
    is_scripted = 0;
    return errno == 54321;
}
EXPORT const char *serve_steps(void) { return steps; }
EXPORT void serve_set_rank(unsigned rank) { monarch_rank = rank; }
EXPORT const char *serve_why(struct session *s, int64_t id) {
    return why_source(s, &monarch_entries(s->catalog)[id]);
}
EXPORT void serve_mark_changed(struct session *s, int64_t id) {
    const struct monarch_entry *e = &monarch_entries(s->catalog)[id];
    monarch_mark_changed(s->clients, s->control->source[e->source].dev, e->ino);
}
