/* In this unit, a test can prevent the start of the thread that replaces mappings. The library's
 * attempts to start it are then only counted. */
#include <string.h>
#include <sys/mman.h>

#include "preload/mappings/move.h"

static int is_scripted, starts, cannot_start;
static int start_mover(struct own *o) {
    if (!is_scripted)
        return monarch_start_mover(o);
    starts++;
    return !cannot_start;
}
#define monarch_start_mover(o) start_mover(o)
#include "preload/mappings/mappings.c"

#include "made.h"

static struct own *kept;
/* is = 1: begins a test, as if this process had added no mapping yet. is = 0: ends the test. */
EXPORT void mappings_script(int is) {
    for (int i = 0; i < SLOTS; i++)
        monarch_slot_free(&monarch_slots[i]);
    if (is) {
        kept = own;
        own = NULL;
    } else {
        if (own)
            sys_unmap(own, 4096);
        own = kept;
    }
    refused = 0;
    starts = cannot_start = 0;
    is_scripted = is;
}
/* From now on, attempts to start the thread fail (is = 1) or succeed (is = 0). Returns the number
 * of attempts since the last call. */
EXPORT int mappings_cannot_start(int is) {
    int n = starts;
    cannot_start = is;
    starts = 0;
    return n;
}
EXPORT void mappings_add(struct session *s, uint64_t id, uint64_t at, uint64_t n, uint64_t offset) {
    const struct monarch_wanted w = {.session = s, .id = id};
    monarch_mapping_add(&w, (void *)at, n, MAP_PRIVATE, offset);
}
EXPORT int mappings_can_wait(int prot, int flags) { return monarch_mapping_can_wait(prot, flags); }
EXPORT void mappings_forget(uint64_t at, uint64_t n) {
    monarch_mappings_say((void *)at, n, MONARCH_FORGET);
}
EXPORT void mappings_refuse(int is) { monarch_mappings_refuse(is); }
EXPORT void mappings_end(void) { monarch_mappings_end(); }
EXPORT void mappings_after_fork(void) { monarch_mappings_after_fork(); }
/* Sets whether this process believes that the thread runs. Returns what it believed before. */
EXPORT int mappings_helper(int is) {
    int was = own ? (int)own->helper : 0;
    if (own)
        own->helper = (uint32_t)is;
    return was;
}
EXPORT void mappings_belong(uint32_t pid) { own->pid = pid; }
/* Clears the page with the state of this process, as the kernel does in a forked child. */
EXPORT void mappings_wipe(void) { memset(own, 0, sizeof *own); }
EXPORT uint32_t mappings_bell(void) { return own->bell; }
EXPORT int mappings_flag(const char *name) {
    return !strcmp(name, "locked")      ? MAP_LOCKED
           : !strcmp(name, "growsdown") ? MAP_GROWSDOWN
           : !strcmp(name, "hugetlb")   ? MAP_HUGETLB
                                        : MAP_SYNC;
}
