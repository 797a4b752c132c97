#include "preload/fill/wait.c"

#include "made.h"

static struct monarch_wanted wanted_of(struct session *s, uint64_t id, uint64_t at, uint64_t n) {
    return (struct monarch_wanted){
        .session = s, .entry = &monarch_entries(s->catalog)[id], .id = id, .at = at, .n = n};
}
EXPORT int64_t wait_ready(struct session *s, uint64_t id, uint64_t at, uint64_t n, uint64_t word) {
    struct monarch_wanted w = wanted_of(s, id, at, n);
    return monarch_ready(&w, word);
}
EXPORT uint64_t wait_missing(struct session *s, uint64_t id, uint64_t word) {
    struct monarch_wanted w = wanted_of(s, id, 0, 0);
    return missing(&w, word);
}
EXPORT int wait_is_settled(struct session *s, uint64_t id, uint64_t at, uint64_t n) {
    struct monarch_wanted w = wanted_of(s, id, at, n);
    return is_settled(&w);
}
EXPORT int wait_may_wait(struct session *s, uint64_t id) {
    struct monarch_wanted w = wanted_of(s, id, 0, 1);
    return may_wait(&w);
}
EXPORT void wait_note_timeout(struct session *s, uint64_t id, uint64_t ago_ns, uint64_t limit_ns,
                              int is_instead) {
    struct monarch_wanted w = wanted_of(s, id, 0, 1);
    w.since_ns = monarch_now_ns() - ago_ns;
    w.limit_ns = limit_ns;
    w.is_instead = is_instead;
    note_timeout(&w);
}
/* Forgets all debts. */
EXPORT void wait_forget(void) {
    debt = waste_debt = 0;
    for (unsigned i = 0; i < sizeof file_debts / sizeof *file_debts; i++)
        file_debts[i] = 0;
}
EXPORT uint64_t wait_owed(uint64_t paid_off, uint64_t limit, uint64_t now) {
    return owed(&paid_off, limit, now);
}
EXPORT uint64_t wait_owe(uint64_t paid_off, uint64_t more, uint64_t limit, uint64_t now) {
    owe(&paid_off, more, limit, now);
    return paid_off;
}
EXPORT uint64_t wait_left_for_word(uint64_t waited_ns, uint64_t limit_ns) {
    struct monarch_wanted w = {.since_ns = monarch_now_ns() - waited_ns, .limit_ns = limit_ns};
    return left_for_word(&w);
}
EXPORT int wait_demand_first(struct session *s, uint64_t id, uint64_t at) {
    struct monarch_wanted w = wanted_of(s, id, at, 1);
    monarch_demand_first(&w);
    return (int)s->clients->engine[0].rings;
}
EXPORT int wait_demand_and_wait(struct session *s, uint64_t id, uint64_t at, uint64_t n,
                                uint64_t limit_ns) {
    struct monarch_wanted w = wanted_of(s, id, at, n);
    w.limit_ns = limit_ns;
    return monarch_demand_and_wait(&w);
}
EXPORT uint64_t wait_silent_sign(struct session *s) { return signs_of_life(s); }
