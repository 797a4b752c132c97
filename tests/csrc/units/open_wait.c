#include "preload/fill/open_wait.h"
#include "preload/fill/wait.h"

/* If `answer` is not negative, waits are only counted, and return `answer` at once. The look at the
 * catalog after such a wait finds a copy if `has_copy` is set. */
static int answer = -1, has_copy, waits, demands, looks, is_instead;
static uint64_t limit_ns, wanted_bytes;
/* completed: NULL, or the address of an entry's word. If it is set, each wait that is only counted
 * stores `word_then` there, as if the copy had become complete. */
static uint64_t *completed, word_then;
static int wait_for_all(const struct monarch_wanted *w) {
    if (completed)
        *completed = word_then;
    waits++;
    limit_ns = w->limit_ns;
    wanted_bytes = w->n;
    is_instead = w->is_instead;
    return answer < 0 ? monarch_wait_for_all(w) : answer;
}
static void demand_first(const struct monarch_wanted *w) {
    demands++;
    if (answer < 0)
        monarch_demand_first(w);
}
static void look_up(struct session *s, int dir, const char *path, int flags,
                    struct monarch_opening *o) {
    looks++;
    if (answer < 0 || completed)
        monarch_look_up(s, dir, path, flags, o);
    else
        o->served = has_copy;
}
#define monarch_wait_for_all(w) wait_for_all(w)
#define monarch_demand_first(w) demand_first(w)
#define monarch_look_up(s, dir, path, flags, o) look_up(s, dir, path, flags, o)
#include "preload/fill/open_wait.c"

#include "made.h"

EXPORT void open_wait_note(int is_good) { note_wait(is_good); }
EXPORT int open_wait_skips(void) { return skips(); }
EXPORT void open_wait_answer(int is, int finds_copy) {
    answer = is;
    has_copy = finds_copy;
    waits = demands = looks = is_instead = 0;
    limit_ns = wanted_bytes = 0;
}
/* From now on, each wait ends at once, and the word at the address `at` becomes `word`: the copy is
 * complete. at = 0: from now on, waits are real again. */
EXPORT void open_wait_completes(uint64_t at, uint64_t word) {
    open_wait_answer(at ? 1 : -1, 0);
    completed = (uint64_t *)at;
    word_then = word;
}
EXPORT int open_wait_waits(void) { return waits; }
EXPORT int open_wait_demands(void) { return demands; }
EXPORT int open_wait_looks(void) { return looks; }
EXPORT int open_wait_is_instead(void) { return is_instead; }
EXPORT uint64_t open_wait_limit(void) { return limit_ns; }
EXPORT uint64_t open_wait_bytes(void) { return wanted_bytes; }
static struct monarch_opening opening_of(struct session *s, int64_t id) {
    const struct monarch_entry *e = id < 0 ? NULL : &monarch_entries(s->catalog)[id];
    return (struct monarch_opening){.entry = e, .id = id, .version = e ? e->version : 0};
}
/* Waits as an open of the entry's file does. is_alone: field of struct monarch_opening. */
EXPORT int open_wait_at(struct session *s, int64_t id, int flags, int is_alone) {
    struct monarch_opening o = opening_of(s, id);
    o.is_alone = is_alone;
    int is_served = monarch_wait_at_open(s, AT_FDCWD, "f", flags, &o);
    return o.waited == (looks != 0) ? is_served : -1;
}
/* Waits for the copy of the entry's file. `by` is a difference: the version that the open has seen,
 * minus the entry's current version. Writes the copy's path to `out`. */
EXPORT int open_wait_for_copy(struct session *s, int64_t id, int is_served, int by, char *out) {
    struct monarch_opening o = opening_of(s, id);
    o.served = is_served;
    o.version += (uint32_t)by;
    int is_there = monarch_wait_for_copy(s, &o);
    strcpy(out, o.copy);
    return o.waited == is_there ? is_there : -1;
}
