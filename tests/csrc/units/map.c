/* In this unit, mmap does not really wait for a copy: the test sets the result of the wait. The
 * steps that the library takes for a mapping are recorded. */
#include <errno.h>
#include <sys/mman.h>

#include "preload/calls/read.h"
#include "preload/fill/handover.h"
#include "preload/fill/progress.h"
#include "preload/mappings/mappings.h"
#include "preload/process/momentary.h"
#include "shared/sys.h"
#include "steps.h"

static int is_coming, is_there, other_file = -1, mapped_fd, within_moment;
static int coming(const struct monarch_wanted *w, uint64_t word) {
    (void)w, (void)word;
    return is_coming;
}
static int wait_for_whole(const struct monarch_wanted *w) {
    step("wait %d", (int)(w->at + w->n));
    if (other_file >= 0)
        sys6(SYS_dup3, other_file, mapped_fd, 0, 0, 0, 0);
    if (!is_there)
        errno = EIO;
    return is_there;
}
static void say(const void *at, uint64_t n, int what) {
    (void)at;
    step("%s %d", what == MONARCH_FORGET ? "forget" : "advise", (int)n);
}
static void add(const struct monarch_wanted *w, uint64_t n, int flags, uint64_t offset) {
    step("add %d of %d at %d%s", (int)n, (int)w->entry->size, (int)offset,
         flags & MAP_SHARED ? " shared" : "");
}
static void hand_over(int is_read) { step("hand over%s", is_read ? " whole" : ""); }
static void progress(uint64_t n) { step("read %d", (int)n); }
static void count(uint64_t n) { step("count %d", (int)n); }
static void begin_moment(void) {
    within_moment++;
    monarch_momentary_begin();
}
static void end_moment(void) {
    within_moment--;
    monarch_momentary_end();
}
#define monarch_is_coming(w, word) coming(w, word)
#define monarch_wait_for_all(w) wait_for_whole(w)
#define monarch_mappings_say(at, n, what) say(at, n, what)
#define monarch_mapping_add(w, at, n, flags, offset) add(w, n, flags, offset)
#define monarch_hand_over(fd, tracked, is_read) hand_over(is_read)
#define monarch_progress(s, id, n) progress(n)
#define monarch_count_source(s, n) count(n)
#define monarch_momentary_begin() begin_moment()
#define monarch_momentary_end() end_moment()
#include "preload/calls/map.c"

#include "made.h"

/* Sets the conditions for the next calls: whether the copy is complete or being made (coming_now),
 * and whether it is complete after the wait (there). other: during the wait, another thread
 * duplicates this descriptor to the number of the mapped descriptor. -1: no thread does so. */
EXPORT void map_answers(int coming_now, int there, int other) {
    is_coming = coming_now;
    is_there = there;
    other_file = other;
}
/* Maps [offset, offset + n) and copies the content of the mapping to `out`. at: an address, or 0 if
 * the kernel is to choose one. Returns 0 or -errno. Returns -9999 if the call has succeeded but has
 * changed errno, or if a momentary descriptor (momentary.h) is still announced. */
EXPORT int map_file(uint64_t at, uint64_t n, int prot, int flags, int fd, uint64_t offset,
                    char *out) {
    steps[0] = 0;
    mapped_fd = fd;
    errno = 54321;
    void *r = mmap((void *)at, n, prot, flags, fd, (off_t)offset);
    int error = errno;
    if (r == MAP_FAILED)
        return within_moment ? -9999 : -error;
    if (out)
        memcpy(out, r, n);
    sys_unmap(r, n);
    return error == 54321 && !within_moment ? 0 : -9999;
}
/* Returns an address at which `n` bytes can be mapped. */
EXPORT uint64_t map_free(uint64_t n) {
    long at = sys6(SYS_mmap, 0, (long)n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return (uint64_t)at;
}
EXPORT const char *map_steps(void) { return steps; }
