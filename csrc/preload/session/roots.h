/* Checks whether the paths of sources and tiers lead to the same directories in this process as in
 * the daemon. */
#pragma once

#include "preload/process/attributes.h"
#include "preload/session/session.h"

/* In a container or after a chroot, the source's path may lead to another directory than in the
 * daemon. Returns whether the path leads to the directory that the daemon has scanned. by_alias:
 * checks the source's alias instead. */
int monarch_root_is_ours_slow(struct session *s, unsigned source, int by_alias);
static inline int monarch_root_is_ours(struct session *s, unsigned source, int by_alias) {
    uint64_t known = __atomic_load_n(&s->roots[by_alias], __ATOMIC_ACQUIRE) >> source * 2 & 3;
    return __builtin_expect(known == 1, 1) || monarch_root_is_ours_slow(s, source, by_alias);
}
/* Returns whether the source's path or its alias leads this process to the directory that the
 * daemon has scanned. */
static inline int monarch_sees_source(struct session *s, unsigned source) {
    for (int by_alias = 0; by_alias < 2; by_alias++)
        if ((__atomic_load_n(&s->roots[by_alias], __ATOMIC_ACQUIRE) >> source * 2 & 3) == 1)
            return 1;
    return monarch_root_is_ours_slow(s, source, 0) ||
           (s->control->source[source].alias_len && monarch_root_is_ours_slow(s, source, 1));
}
int monarch_mounts_are_ours(struct session *s);

void monarch_roots_may_differ(void); /* call this after a chroot */
/* Call this when a thread gets a root directory of its own, or enters another mount namespace.
 * From then on, this process uses no copies. */
void monarch_roots_are_foreign(void);

/* Returns whether the path of a tier leads to a directory in this process, but not to the daemon's
 * private directory. The library could mistake a file in such a directory for a copy, so this
 * function also warns the user. Returns 0 if the path leads to no directory, as in a container
 * without the tier. */
int monarch_has_foreign_tier(const struct monarch_control *k);

/* Atomic: whether the working directory is near a source (below or above it), or far from all
 * sources; see preload/lookup/cwd.h. */
extern uint64_t monarch_cwd_is HIDDEN;
void monarch_cwd_may_differ(void);
/* Resets monarch_cwd_is if the number of the daemon's sources has changed since the last call. */
void monarch_sources_may_differ(const struct session *s);
