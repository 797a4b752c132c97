/* Live mappings of source files whose copies are not complete.
 *
 * Each mapping is replaced in place once its copy is complete, by a thread that runs only while
 * some mapping waits. docs/architecture.md draws the states; tests/csrc/test_mapping_model.py tries
 * every order of the steps, whose names stand in brackets in the comments. */
#pragma once

#include "preload/fill/demand.h"
#include "preload/mappings/waiting.h"

/* Whether a mapping with this protection and these flags can be replaced without the program
 * noticing. */
int monarch_mapping_can_wait(int prot, int flags);
/* Called when [at, at + n) has just been mapped from the source's file. Does not change errno. */
void monarch_mapping_add(const struct monarch_wanted *w, void *at, uint64_t n, int flags,
                         uint64_t offset);

/* Called before a system call that removes or changes a mapping. When it returns, no replacement is
 * under way in the range, and after MONARCH_FORGET none will begin. `what`: MONARCH_FORGET, or an
 * advice that is repeated for the copy. */
void monarch_mappings_say_slow(const void *at, uint64_t n, int what);
static inline void monarch_mappings_say(const void *at, uint64_t n, int what) {
    if (monarch_mappings_exist())
        monarch_mappings_say_slow(at, n, what);
}
/* refuse = 1: all memory is locked, so no mapping is added from here on. 0: mappings are added
 * again. */
void monarch_mappings_refuse(int refuse);

/* Called in the child of a fork. */
void monarch_mappings_after_fork(void);
/* Called before a system call that the kernel refuses to a process with several threads: forgets
 * all mappings, and waits until the thread is gone, 0.5 s at most. */
void monarch_mappings_end(void);
