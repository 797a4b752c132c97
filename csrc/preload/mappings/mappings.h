/* Keeps track of a program's mappings of source files whose copies are not complete yet.
 *
 * When a file's copy is complete, a thread replaces the file's mappings in place by mappings of
 * the copy. The thread runs only while a mapping waits. docs/architecture.md has a diagram of a
 * mapping's states. The model in tests/csrc/test_mapping_model.py executes the steps of all
 * threads in every possible order. Names in brackets in the comments are steps of this model. */
#pragma once

#include "preload/fill/wait.h"
#include "preload/mappings/waiting.h"

/* Returns whether a mapping with this protection and these flags can be replaced without any effect
 * that the program could notice. */
int monarch_mapping_can_wait(int prot, int flags);
/* Call this after the range [at, at + n) was mapped from the source's file. Adds the mapping to
 * the table of mappings that wait for their copies. Does not change errno. */
void monarch_mapping_add(const struct monarch_wanted *w, void *at, uint64_t n, int flags,
                         uint64_t offset);

/* Call this before a system call that removes or changes mappings in the range. When this function
 * returns, no mapping in the range is being replaced. If `what` is MONARCH_FORGET, the mappings in
 * the range are never replaced. Any other value of `what` is advice that the program passes to
 * madvise. The library gives the same advice for the mappings of copies that later replace these
 * mappings. */
void monarch_mappings_say_slow(const void *at, uint64_t n, int what);
static inline void monarch_mappings_say(const void *at, uint64_t n, int what) {
    if (monarch_mappings_exist())
        monarch_mappings_say_slow(at, n, what);
}
/* refuse = 1: removes all mappings from the table, and lets monarch_mapping_add add no more. Call
 * this when the program locks all its memory (mlockall), because locked mappings must not be
 * replaced. refuse = 0: mappings can be added again. */
void monarch_mappings_refuse(int refuse);

/* Starts a thread for the inherited mappings that still wait for their copies. Call this in the
 * child after a fork. */
void monarch_mappings_after_fork(void);
/* Removes all mappings from the table, so that the thread of move.c ends, and waits up to 0.5 s for
 * its end. Call this before a system call that the kernel refuses to a process with several
 * threads. */
void monarch_mappings_end(void);
