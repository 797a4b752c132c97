/* The table of mappings that wait. mappings.c adds to it; the thread of move.c empties it. */
#ifndef MONARCH_MAPPING_TABLE_H
#define MONARCH_MAPPING_TABLE_H

#include <signal.h>

#include "preload/mappings/waiting.h"
#include "preload/process/maps.h"
#include "preload/session/session.h"
#include "shared/sys.h"

#define SLOTS 128 /* ranges that wait at a time; others stay on the source */

enum state { FREE, WAITING, REPLACING };

struct slot {
    uint32_t state;  /* atomic; only the thread ends REPLACING, and that needs no lock */
    uint32_t number; /* another after each change */
    uint64_t begin, end, offset;
    uint64_t id;      /* of the entry */
    uint32_t version; /* its, when it was of the file that is mapped */
    struct session *session;
    struct monarch_mapped file;
    int flags, advice;
    uint32_t tries;
};

/* All zeros in the child of a fork. */
struct own {
    uint32_t lock;   /* atomic */
    uint32_t pid;    /* 0: the table is still the parent's */
    uint32_t helper; /* a thread runs, or is being started */
    uint32_t tid;
    uint32_t bell; /* futex: the thread is to look at once */
};

extern struct slot monarch_slots[SLOTS];

#define GET(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)
#define SET(field, value) __atomic_store_n(&(field), value, __ATOMIC_RELAXED)

/* [lock] Signals are blocked. 0: the lock is lost, and nothing is ever replaced again. */
int monarch_slots_lock(struct own *o);
void monarch_slots_unlock(struct own *o);
void monarch_slots_lose(void);
int monarch_slots_are_lost(void);
/* With the lock. A range for which there is no slot stays on the source. */
void monarch_slot_put(const struct slot *what);
void monarch_slot_free(struct slot *s);
void monarch_slots_recount(void);

/* Whether nothing waits in the range, without the lock: then it is somebody else's mapping. */
int monarch_slots_are_quiet(uint64_t begin, uint64_t end);
/* See monarch_mappings_say. 0: a replacement is under way, and the call is to be tried again. */
int monarch_slots_say(struct own *o, uint64_t begin, uint64_t end, int what);

#endif
