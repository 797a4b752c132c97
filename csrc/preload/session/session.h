/* The process's connection to a daemon's session: found at load, followed when daemons come and
 * go, never waited for. Nothing here takes a lock or keeps a descriptor. */
#ifndef MONARCH_SESSION_H
#define MONARCH_SESSION_H

#include "shared/catalog.h"

/* Catalogs that a process keeps in mind after they were replaced: a larger one does not know copies
 * that were dropped before it was made, and descriptors of those may be open. */
#define MONARCH_OLDER 8

/* A session is never freed: threads that hang in a call, mappings that wait and the words of
 * track.h know it. What it has mapped is replaced with zeros once nothing of it is needed. */
struct session {
    const struct monarch_control *control;
    struct monarch_clients *clients;
    const struct monarch_fills *fills;     /* atomic, NULL until it is needed */
    const struct monarch_catalog *catalog; /* atomic */
    uint64_t roots[2];                     /* atomic: see monarch_root_is_ours */
    /* Atomic: 1 if a switch file exists, or nothing may be read from copies; above it, the number
     * of the look that found so. */
    uint32_t off;
    uint32_t mounts;        /* atomic: 1 our mount name space is the daemon's, 2 it is not */
    struct session *before; /* atomic: of a daemon that is gone; its copies may be open */
    /* Atomic, the oldest may be missing; they stay mapped for their readers. */
    const struct monarch_catalog *older[MONARCH_OLDER];
    uint32_t older_used; /* atomic */
    uint32_t number;     /* see monarch_session_at */
    uint64_t dev, ino;   /* of its `control` */
    uint64_t linked_ns;  /* atomic: when a change last saw that its name leads there */
    uint32_t listings;   /* atomic: open directories whose names are in its catalog */
    uint32_t needed;     /* atomic: the last search that found an open copy of it, see retire.c */
    uint32_t released;   /* atomic: nothing is mapped any more */
    uint32_t distrusts;  /* a tier was another directory than the daemon's when we attached */
    uint32_t reused;     /* the address of `clients` was */
};

/* Atomic. NULL in a process that has nothing to do with Monarch. */
extern struct session *monarch_current __attribute__((visibility("hidden")));
/* What it is while a configuration is named but no daemon has answered yet. */
extern struct session monarch_waiting __attribute__((visibility("hidden")));

struct session *monarch_session_slow(void);

static inline int monarch_is_serving(const struct session *s) {
    return __atomic_load_n(&s->control->state, __ATOMIC_ACQUIRE) == MONARCH_SERVING;
}

static inline int monarch_is_off(const struct session *s) {
    return (int)(__atomic_load_n(&s->off, __ATOMIC_RELAXED) & 1);
}

/* For a read or a look-up: NULL sends it to the source. */
static inline struct session *session_for_reading(void) {
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    if (__builtin_expect(!s, 1))
        return s;
    if (__builtin_expect(monarch_is_serving(s) && !s->control->off && !monarch_is_off(s), 1))
        return s;
    return monarch_session_slow();
}

/* For a change, which is recorded also while everything is switched off: what was changed then
 * must not be served from its copy later. */
struct session *monarch_session_for_change(void);
static inline struct session *session_for_change(void) {
    return __builtin_expect(!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE), 1)
               ? NULL
               : monarch_session_for_change();
}

/* A session's number has 5 bits. By it the newest session is found, and in the place of all others
 * one that serves nothing. */
unsigned monarch_session_number(const struct session *s);
struct session *monarch_session_at(unsigned number);

/* Puts another in the place of `old`, if it can be had; returns what is there then. */
const struct monarch_catalog *monarch_catalog_slow(struct session *s,
                                                   const struct monarch_catalog *old);
/* The newest catalog that can be had; NULL before there is one. */
static inline const struct monarch_catalog *monarch_catalog_of(struct session *s) {
    const struct monarch_catalog *c = __atomic_load_n(&s->catalog, __ATOMIC_ACQUIRE);
    uint64_t generation = __atomic_load_n(&s->control->generation, __ATOMIC_ACQUIRE);
    if (__builtin_expect((c && c->generation == generation) || !generation, 1))
        return c;
    return monarch_catalog_slow(s, c);
}

/* The maps of unfinished copies, which most processes never need; NULL: these are not read. */
const struct monarch_fills *monarch_fills_of(struct session *s);

/* Looks at the switch files, at our rights and whether the session is still there; at most once a
 * second. */
void monarch_tick(struct session *s);
/* At once, for the newest session. */
void monarch_rights_may_differ(void);

struct monarch_stats *monarch_my_stats(struct session *s);

/* Number of the source / the tier that lies on this device, -1 for none. */
int monarch_source_on(const struct session *s, uint64_t dev, int from);
int monarch_tier_on(const struct session *s, uint64_t dev, int from);

/* One line to standard error, at most once in a process, and only if descriptor 2 is still what it
 * was when we were loaded. */
void monarch_warn(const char *what, const char *name, const char *hint);
/* Only while one thread runs, which is in a constructor. */
void monarch_pass_warning_on(void);

#endif
