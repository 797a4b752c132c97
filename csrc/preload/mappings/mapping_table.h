/* The table of mappings that wait for their copies.
 *
 * A mapping of a source's file waits until the file's copy is complete. Then the thread of move.c
 * replaces the mapping by a mapping of the copy. mappings.c adds mappings to the table, and
 * removes a mapping when the program changes it. The thread removes each mapping that was
 * replaced, or that can no longer be replaced. Names in brackets in the comments are steps of the
 * model in tests/csrc/test_mapping_model.py. */
#pragma once

#include <signal.h>

#include "preload/mappings/waiting.h"
#include "preload/process/maps.h"
#include "preload/session/session.h"
#include "shared/sys.h"

/* maximum number of mappings in the table; any further mapping stays a mapping of the source's
 * file */
#define SLOTS 128

enum state { FREE, WAITING, REPLACING };

struct slot {
    /* Atomic. Only the thread of move.c ends the state REPLACING, and does so without the table's
     * lock. (In a forked child, `adopt` ends an inherited REPLACING.) */
    uint32_t state;
    uint32_t number; /* changes at each change of the slot, so that the thread of move.c notices the
                      * change */
    uint64_t begin, end, offset;
    uint64_t id;      /* number of the mapped file's entry */
    uint32_t version; /* the version that the entry had when the file was mapped */
    struct session *session;
    struct monarch_mapped file;
    int flags, advice;
    uint32_t tries;
};

/* The part of the table's state that is not inherited: in a forked child, it is all zeros. */
struct own {
    uint32_t lock;   /* atomic */
    uint32_t pid;    /* 0: a forked child has not adapted its parent's table yet */
    uint32_t helper; /* 1: the thread of move.c runs, or is being started */
    uint32_t tid;
    uint32_t bell; /* a futex: wakes the thread of move.c, which then checks the table at once */
};

extern struct slot monarch_slots[SLOTS];

#define GET(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)
#define SET(field, value) __atomic_store_n(&(field), value, __ATOMIC_RELAXED)

/* Takes the table's lock. The caller must have blocked signals. Returns 0 if the process has given
 * up the lock (LOCK_NS in mapping_table.c). From then on, no replacement of a mapping begins. This
 * is the step [lock] of the model (tests/csrc/test_mapping_model.py). */
int monarch_slots_lock(struct own *o);
void monarch_slots_unlock(struct own *o);
void monarch_slots_lose(void);
int monarch_slots_are_lost(void);
/* The caller of the next three functions must hold the lock. If monarch_slot_put finds no free
 * slot, the mapping stays a mapping of the source's file. */
void monarch_slot_put(const struct slot *what);
void monarch_slot_free(struct slot *s);
void monarch_slots_recount(void);

/* Returns 1 if no mapping in the range waits for its copy or is being replaced. Then
 * monarch_slots_say need not be called. Returns 0 while another thread changes the table. Takes no
 * lock. */
int monarch_slots_are_quiet(uint64_t begin, uint64_t end);
/* Does the work of monarch_mappings_say. Returns 0 while a mapping in the range is being replaced.
 * The caller must then call this function again. */
int monarch_slots_say(struct own *o, uint64_t begin, uint64_t end, int what);
