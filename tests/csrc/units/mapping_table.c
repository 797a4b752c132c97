#include "preload/mappings/mapping_table.c"

#include "made.h"

static struct own own;

EXPORT void table_put(uint64_t begin, uint64_t end, uint64_t offset, uint64_t id) {
    struct slot what = {.begin = begin, .end = end, .offset = offset, .id = id, .advice = -1};
    monarch_slot_put(&what);
}
EXPORT int table_say(uint64_t begin, uint64_t end, int what) {
    return monarch_slots_say(&own, begin, end, what);
}
EXPORT int table_is_quiet(uint64_t begin, uint64_t end) {
    return monarch_slots_are_quiet(begin, end);
}
EXPORT int table_waiting(void) { return (int)monarch_mappings_waiting; }
EXPORT int table_slots(void) { return SLOTS; }
/* Writes slot `i` to `out`: state, begin, end, offset, id, advice and number. */
EXPORT void table_slot(int i, uint64_t *out) {
    const struct slot *s = &monarch_slots[i];
    const uint64_t all[] = {s->state, s->begin, s->end, s->offset, s->id, (uint64_t)s->advice,
                            s->number};
    for (unsigned n = 0; n < sizeof all / sizeof *all; n++)
        out[n] = all[n];
}
EXPORT void table_set_state(int i, uint32_t state) { monarch_slots[i].state = state; }
EXPORT void table_fork(int is_cut) {
    edits += (uint32_t)is_cut;
    own = (struct own){.lock = 0};
}
EXPORT void table_clear(void) {
    for (int i = 0; i < SLOTS; i++)
        monarch_slot_free(&monarch_slots[i]);
}
