/* In this unit, each reading of the clock advances the clock by a second. The test sets the round
 * of a wait in which a closing ends. As in promote.c, a closing is the replacement of a descriptor,
 * during which the kernel closes the old open file. */
#include <string.h>

#include "preload/fill/handover.h"
#include "shared/sys.h"

static uint64_t second(void);
static void take_round(void);
static long make_call(long number, long a, long b, long c, long d, long e, long f);
static void keep_descriptor(int fd);
#define sys6(number, a, b, c, d, e, f) make_call(number, a, b, c, d, e, f)
#define monarch_keep_descriptor(fd) keep_descriptor(fd)
#define monarch_now_ns() second()
#define sys_relax(n) take_round()
#include "preload/promotion/promote.c"
#undef sys6
#undef monarch_keep_descriptor
#undef monarch_now_ns
#undef sys_relax

#include "made.h"

/* announced: the mark (closing_of) that must be in a slot of `closings` when a descriptor is
 * replaced. is_announced: whether it was there. */
static uint64_t announced;
static int is_announced;
static long make_call(long number, long a, long b, long c, long d, long e, long f) {
    if (number == SYS_dup3)
        for (int i = 0; i < CLOSINGS; i++)
            is_announced |= closings[i] == announced;
    return sys6(number, a, b, c, d, e, f);
}
static int kept = -1; /* the descriptor of the last call of keep_descriptor */
static void keep_descriptor(int fd) {
    kept = fd;
    monarch_keep_descriptor(fd);
}
EXPORT int promote_kept(void) { return kept; }
static uint64_t seconds;
static int rounds, ends_in_round;
static uint64_t second(void) { return ++seconds * 1000000000; }
static void take_round(void) {
    if (++rounds == ends_in_round)
        closings[3] = 0;
}
EXPORT void promote_forget(void) {
    memset(closings, 0, sizeof closings);
    rounds = ends_in_round = 0;
}
/* Begins a closing of the file. Returns the number of its slot, or -1 if no slot is free. */
EXPORT int promote_begin(uint64_t dev, uint64_t ino) {
    const uint64_t *slot = begin_closing(closing_of(dev, ino));
    return slot ? (int)(slot - closings) : -1;
}
EXPORT void promote_end(int slot) { closings[slot] = 0; }
/* Makes the slot belong to another process, like a slot that a forked child inherits. */
EXPORT void promote_inherit(int slot) { closings[slot] ^= 1ULL << 41; }
/* The closing in slot 3 ends in the given round of a wait; 0: it does not end. */
EXPORT void promote_ends_in(int round) {
    rounds = 0;
    ends_in_round = round;
}
EXPORT int promote_rounds(void) { return rounds; }
EXPORT int promote_keep_locks(int fd) { return monarch_keep_locks(fd); }
EXPORT void promote_compare(int fd) { monarch_compare_source(fd); }
EXPORT int promote_is_still(struct session *s, uint64_t id, int fd) {
    return monarch_is_still(fd, s, &monarch_entries(monarch_catalog_of(s))[id]);
}
/* Tries to replace the descriptor with one of the copy. tracked: the descriptor's word (track.h) at
 * the time when the caller found the entry. by, ino: the version and the inode that the caller
 * found are the entry's present ones plus `by` and `ino`. Returns whether the descriptor was
 * replaced, or -1 if it was replaced without being announced. */
EXPORT int promote_promote(struct session *s, uint64_t id, int fd, uint64_t tracked, int by,
                           int ino) {
    const struct monarch_entry *e = &monarch_entries(monarch_catalog_of(s))[id];
    struct monarch_wanted w = {.session = s,
                               .entry = e,
                               .id = id,
                               .version = e->version + (uint32_t)by,
                               .ino = e->ino + (uint64_t)ino};
    announced = closing_of(s->control->source[e->source].dev, w.ino);
    is_announced = 0;
    int done = monarch_promote(fd, tracked, &w);
    return done == is_announced ? done : -1;
}
