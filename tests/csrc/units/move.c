#include <errno.h>

#include "preload/mappings/mapping_table.h"
#include "within.h"

/* The test decides which call of mmap or mremap fails for lack of memory. */
static int mmaps, mremaps;
static int fails(long call) {
    return (call == SYS_mmap && mmaps-- == 1) || (call == SYS_mremap && mremaps-- == 1);
}
static int is_lost;
#define sys6(call, ...) (fails(call) ? -ENOMEM : sys6(call, __VA_ARGS__))
#define monarch_slots_are_lost() is_lost
#include "preload/mappings/move.c"
#undef monarch_slots_are_lost

#include "made.h"

static struct own mover;
static uint64_t beat, since_ns;

/* Empties the table of mappings, makes it this process's own, and forgets the daemons'
 * heartbeats. */
EXPORT void move_forget(void) {
    mover = (struct own){.pid = (uint32_t)sys_getpid()};
    beat = since_ns = 0;
    for (int i = 0; i < SLOTS; i++)
        monarch_slot_free(&monarch_slots[i]);
    monarch_slots_recount();
}
/* Puts the mapping at `begin` into the table, where it waits for the copy of the entry `id`. If the
 * table was empty, the mapping gets slot 0. */
EXPORT void move_wait(struct session *s, uint64_t id, uint64_t begin, uint64_t n, uint64_t offset,
                      int flags, int advice) {
    struct slot what = {.begin = begin, .end = begin + n, .offset = offset, .id = id, .session = s};
    what.version = monarch_entries(s->catalog)[id].version;
    what.flags = flags;
    if (monarch_mapped_file(begin, &what.file))
        monarch_slot_put(&what);
    monarch_slots[0].advice = advice;
}
/* Makes one call of mmap and one of mremap fail. The arguments say which ones, counted from 1. If
 * an argument is 0, no such call fails. */
EXPORT void move_fail(int mmap_call, int mremap_call) {
    mmaps = mmap_call;
    mremaps = mremap_call;
}
EXPORT void move_lose(int is) { is_lost = is; }
EXPORT int move_are_guarded(void) { return are_guarded(); }
EXPORT int64_t move_look(void) { return look(&mover, &beat, &since_ns); }
EXPORT int move_helper(int is) {
    int was = (int)mover.helper;
    mover.helper = (uint32_t)is;
    return was;
}
EXPORT void move_silent_for(const struct session *s, uint64_t ns) {
    beat = s->control->heartbeat;
    since_ns = monarch_now_ns() - ns;
}
EXPORT int move_tries(int tries) {
    int was = (int)monarch_slots[0].tries;
    if (tries >= 0)
        monarch_slots[0].tries = (uint32_t)tries;
    return was;
}
EXPORT void move_leave(struct session *s) { monarch_current = s; }
/* Calls drop for the first slot, as after a failed attempt to replace its mapping. drop receives
 * the slot's `number` from before the attempt: here, its present number plus `more`. The number
 * changes whenever the slot changes. So unless `more` is 0, the slot seems to have changed during
 * the attempt. */
EXPORT void move_drop(uint32_t more, int hopeless) {
    struct slot seen = monarch_slots[0];
    seen.number += more;
    drop(&mover, &monarch_slots[0], &seen, hopeless);
}
EXPORT int move_take(uint32_t more) {
    struct slot seen = monarch_slots[0];
    seen.number += more;
    return take(&mover, &monarch_slots[0], &seen);
}
EXPORT int move_is_locked(void) { return (int)mover.lock; }
EXPORT int move_start(void) {
    mover.helper = 1;
    return monarch_start_mover(&mover);
}
EXPORT int move_thread(void) { return (int)__atomic_load_n(&mover.tid, __ATOMIC_ACQUIRE); }
EXPORT int move_has_helper(void) { return (int)__atomic_load_n(&mover.helper, __ATOMIC_ACQUIRE); }
