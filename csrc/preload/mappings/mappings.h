/* Live mappings of source files whose copies are not complete. Each is replaced in place once its
 * copy is, by a thread that runs only while some wait. docs/architecture.md draws the states;
 * tests/csrc/test_mapping_model.py tries every order of the steps, which have the same names there.
 */
#ifndef MONARCH_MAPPINGS_H
#define MONARCH_MAPPINGS_H

#include "preload/fill/demand.h"
#include "preload/mappings/waiting.h"

/* Whether a mapping with these can be replaced without anybody noticing. */
int monarch_mapping_can_wait(int prot, int flags);
/* [at, at + n) has just been mapped from the source's file. Leaves errno alone. */
void monarch_mapping_add(const struct monarch_wanted *w, void *at, uint64_t n, int flags,
                         uint64_t offset);

/* Before the call that removes or changes a mapping: from the return on nothing in the range is
 * replaced, and no replacement is under way there. `what`: MONARCH_FORGET, or an advice. */
void monarch_mappings_say_slow(const void *at, uint64_t n, int what);
static inline void monarch_mappings_say(const void *at, uint64_t n, int what) {
    if (monarch_mappings_exist())
        monarch_mappings_say_slow(at, n, what);
}
/* From here on no mapping is added, or some may be again: all memory is locked. */
void monarch_mappings_refuse(int refuse);

/* In the child of a fork. */
void monarch_mappings_after_fork(void);
/* Before a call that a process with several threads is refused: everything is forgotten and the
 * thread is gone. */
void monarch_mappings_end(void);

#endif
