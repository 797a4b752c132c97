/* Handles live mappings of source files whose copies are not complete.
 *
 * Once a file's copy is complete, a thread replaces the file's mappings in place by mappings of the
 * copy. The thread runs only while a mapping waits. docs/architecture.md draws the states.
 * tests/csrc/test_mapping_model.py contains a model that executes the steps in every possible
 * order. Comments name the steps of the model in brackets. */
#pragma once

#include "preload/fill/wait.h"
#include "preload/mappings/waiting.h"

/* Returns whether a mapping with this protection and these flags can be replaced without any effect
 * that the program could notice. */
int monarch_mapping_can_wait(int prot, int flags);
/* Call this after [at, at + n) was mapped from the source's file. Leaves errno alone. */
void monarch_mapping_add(const struct monarch_wanted *w, void *at, uint64_t n, int flags,
                         uint64_t offset);

/* Call this before a system call that removes or changes a mapping. When this function returns, no
 * mapping in the range is being replaced. If `what` is MONARCH_FORGET, no mapping in the range will
 * be replaced later either. Any other value of `what` is the advice that the program passes to
 * madvise. If a mapping in the range is replaced later, the new mapping gets the same advice. */
void monarch_mappings_say_slow(const void *at, uint64_t n, int what);
static inline void monarch_mappings_say(const void *at, uint64_t n, int what) {
    if (monarch_mappings_exist())
        monarch_mappings_say_slow(at, n, what);
}
/* refuse = 1: all memory is locked (mlockall), so no mapping is added from now on. refuse = 0:
 * mappings are added again. */
void monarch_mappings_refuse(int refuse);

/* Call this in the child after a fork. Starts a thread for the inherited mappings that still wait
 * for their copies. */
void monarch_mappings_after_fork(void);
/* Call this before a system call that the kernel refuses to a process with several threads. Forgets
 * all mappings, which makes the thread of move.c end, and waits up to 0.5 s until the thread has
 * ended. */
void monarch_mappings_end(void);
