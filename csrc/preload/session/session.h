/* The process's connection to a daemon's session. The process searches for a session when the
 * library is loaded, and for a newer session after the daemon has ended. None of the functions
 * below waits for a daemon, takes a lock, or leaves a descriptor open. */
#pragma once

#include "shared/catalog.h"

/* Number of old catalogs that a process keeps after newer catalogs have replaced them. A program
 * may keep a copy open after the copy was dropped from the tier. Catalogs that were made after the
 * drop do not contain this copy, so an old catalog is needed. */
#define MONARCH_OLDER 8

/* This structure is never freed, because there may still be references to it: from threads that
 * hang in a call, from waiting mappings (mapping_table.h), and from the words of tracked
 * descriptors (track.h). When a session's segments are no longer needed, zeros are mapped over the
 * segments. */
struct session {
    const struct monarch_control *control;
    struct monarch_clients *clients;
    const struct monarch_fills *fills;     /* atomic; NULL until it is needed */
    const struct monarch_catalog *catalog; /* atomic */
    uint64_t roots[2];                     /* atomic, see monarch_root_is_ours */
    /* Atomic. Lowest bit: 1 if all reads must go to the source, for example because of an
     * administrator's switch file. Other bits: number of the check that has written the lowest bit
     * (attach.c). */
    uint32_t off;
    /* Atomic. 1: this process is in the daemon's mount namespace; 2: it is in another mount
     * namespace; 0: unknown */
    uint32_t mounts;
    /* atomic: the session of the previous daemon; the program may still have that daemon's copies
     * open */
    struct session *before;
    /* Atomic. The last MONARCH_OLDER catalogs that newer catalogs have replaced. They stay mapped,
     * because threads may still read them. */
    const struct monarch_catalog *older[MONARCH_OLDER];
    uint32_t older_used; /* atomic */
    uint32_t number;     /* see monarch_session_at */
    uint64_t dev, ino;   /* of the segment `control` */
    /* Atomic: time at which the process last found that the path of the segment `control` leads to
     * this session's segment. The process checks this before it records a change. */
    uint64_t linked_ns;
    /* atomic: number of open directories that are listed from the session's catalog */
    uint32_t listings;
    /* Atomic. When a new session replaces an old one, the process searches its descriptors for
     * open copies of earlier sessions (attach.c). `needed` is the number of the last search that
     * has found a copy of this session. */
    uint32_t needed;
    uint32_t released; /* atomic; 1: a thread maps zeros over the segments, or has done so */
    /* 1: when the process attached to the session, a tier's path did not lead to the daemon's
     * directory (monarch_has_foreign_tier) */
    uint32_t distrusts;
    uint32_t reused; /* 1: `clients` is at an address that an earlier session used */
};

/* The newest session. Atomic; NULL in a process that does not use Monarch. */
extern struct session *monarch_current __attribute__((visibility("hidden")));
/* The value of monarch_current while the process has a configuration, but has found no daemon
 * yet. */
extern struct session monarch_waiting __attribute__((visibility("hidden")));

struct session *monarch_session_slow(void);

static inline int monarch_is_serving(const struct session *s) {
    return __atomic_load_n(&s->control->state, __ATOMIC_ACQUIRE) == MONARCH_SERVING;
}

static inline int monarch_is_off(const struct session *s) {
    return (int)(__atomic_load_n(&s->off, __ATOMIC_RELAXED) & 1);
}

/* Returns the session for a read or a look-up, or NULL if the source must answer. */
static inline struct session *session_for_reading(void) {
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    if (__builtin_expect(!s, 1))
        return s;
    if (__builtin_expect(monarch_is_serving(s) && !s->control->off && !monarch_is_off(s), 1))
        return s;
    return monarch_session_slow();
}

/* Returns the session in which a change must be recorded, or NULL. Changes are recorded even while
 * Monarch is switched off. Otherwise, later reads of a file that has changed meanwhile would get
 * its outdated copy. */
struct session *monarch_session_for_change(void);
static inline struct session *session_for_change(void) {
    return __builtin_expect(!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE), 1)
               ? NULL
               : monarch_session_for_change();
}

/* Returns the newest session if it has this number (5 bits). Otherwise returns monarch_waiting,
 * which has no files and no copies. */
struct session *monarch_session_at(unsigned number);

/* Maps the newest catalog. If that succeeds, stores it in the session in place of `old`. Returns
 * the catalog that the session has afterwards. */
const struct monarch_catalog *monarch_catalog_slow(struct session *s,
                                                   const struct monarch_catalog *old);
/* Returns the newest catalog that can be mapped, or NULL if there is none yet. */
static inline const struct monarch_catalog *monarch_catalog_of(struct session *s) {
    const struct monarch_catalog *c = __atomic_load_n(&s->catalog, __ATOMIC_ACQUIRE);
    uint64_t generation = __atomic_load_n(&s->control->generation, __ATOMIC_ACQUIRE);
    if (__builtin_expect((c && c->generation == generation) || !generation, 1))
        return c;
    return monarch_catalog_slow(s, c);
}

/* Returns entry `id` of the newest catalog, or NULL if the catalog has no entry of this number. */
static inline const struct monarch_entry *monarch_entry_of(struct session *s, uint64_t id) {
    const struct monarch_catalog *c = monarch_catalog_of(s);
    return c && id < c->capacity ? &monarch_entries(c)[id] : NULL;
}

/* Returns whether the entry's file was recorded as changed. If so, the catalog and the copy are
 * outdated. */
static inline int monarch_entry_is_changed(const struct session *s, const struct monarch_entry *e) {
    return monarch_is_changed(s->clients, s->control->source[e->source].dev, e->ino);
}

/* Returns whether the file is small and its source is fast. Then a read at the source takes less
 * time than a wait for the copy. */
static inline int monarch_is_fast(const struct session *s, const struct monarch_entry *e) {
    return e->size <= MONARCH_UNIT &&
           __atomic_load_n(&s->control->fast_sources, __ATOMIC_RELAXED) >> e->source & 1;
}

/* Returns the segment `fills`, or NULL if it cannot be mapped. Without it, reads cannot use
 * unfinished copies. Most processes never need it, so it is mapped at the first call of this
 * function. */
const struct monarch_fills *monarch_fills_of(struct session *s);

/* At most once a second, checks the switch files, the process's rights, and whether the session's
 * directory still exists. */
void monarch_tick(struct session *s);
/* Checks at once whether the process's rights suffice for the newest session. Call this when the
 * process's user or groups may have changed. */
void monarch_rights_may_differ(void);

struct monarch_stats *monarch_my_stats(struct session *s);

/* A rank is a training process with its workers. Launchers number the ranks of a node from 0.
 * monarch_rank is 1 + the number of this process's rank, or 0 if no launcher has given a number. */
extern unsigned monarch_rank __attribute__((visibility("hidden")));
/* Reads monarch_rank from the environment. Call this in a constructor, because other threads may
 * change the environment later. */
void monarch_rank_init(void);

/* The next two functions return the number of the first source or tier on the device `dev`, or -1
 * if there is none. The search begins at number `from`. */
int monarch_source_on(const struct session *s, uint64_t dev, int from);
int monarch_tier_on(const struct session *s, uint64_t dev, int from);

/* --- telling the daemon --- */

/* Wakes the daemon if it sleeps. */
void monarch_ring(struct session *s);
/* Returns whether monarch_hint_scan would probably find a free slot for another path. */
int monarch_may_hint_scan(const struct session *s);
/* Sends the daemon the path of a file that is not in the catalog. If no slot is free for the path,
 * does nothing; the daemon then learns of the file later. is_part: 1 if the program has read only
 * a small part of the file, so that the daemon must not fill it. */
void monarch_hint_scan(struct session *s, unsigned source, const char *path, size_t len,
                       int is_part);

/* Writes one line to standard error: a warning that all reads go to the source. Writes it at most
 * once in a process, and only if standard error refers to the same file as when the library was
 * loaded. what: the reason. name: the path to which the reason refers. hint: an instruction for
 * the user. */
void monarch_warn(const char *what, const char *name, const char *hint);
/* If this process has written the warning, tells its child processes not to repeat it. Call this
 * only in a constructor, while there is only one thread. */
void monarch_pass_warning_on(void);
