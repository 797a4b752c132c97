/* Whether this process sees what the daemon sees: the same directories under the same names. */
#pragma once

#include "preload/process/attributes.h"
#include "preload/session/session.h"

/* Whether the source's path (by_alias: its alias) leads this process to the directory that was
 * scanned. */
int monarch_root_is_ours_slow(struct session *s, unsigned source, int by_alias);
static inline int monarch_root_is_ours(struct session *s, unsigned source, int by_alias) {
    uint64_t known = __atomic_load_n(&s->roots[by_alias], __ATOMIC_ACQUIRE) >> source * 2 & 3;
    return __builtin_expect(known == 1, 1) || monarch_root_is_ours_slow(s, source, by_alias);
}
/* Whether the source's path or its alias leads this process to the directory that was scanned.
 * Either is enough, because a program may use the alias alone. */
static inline int monarch_sees_source(struct session *s, unsigned source) {
    for (int by_alias = 0; by_alias < 2; by_alias++)
        if ((__atomic_load_n(&s->roots[by_alias], __ATOMIC_ACQUIRE) >> source * 2 & 3) == 1)
            return 1;
    return monarch_root_is_ours_slow(s, source, 0) ||
           (s->control->source[source].alias_len && monarch_root_is_ours_slow(s, source, 1));
}
int monarch_mounts_are_ours(struct session *s);

void monarch_roots_may_differ(void);  /* called after a chroot */
void monarch_roots_are_foreign(void); /* called in another mount namespace; it holds for good */

/* Whether a tier's path leads this process to another directory than the daemon, so that other
 * files may have the names of copies. If so, warns the user. A path that leads nowhere (in a
 * container without the tier) does no harm: nothing is served from it. */
int monarch_has_foreign_tier(const struct monarch_control *k);

/* Where the working directory lies, see preload/lookup/cwd.h. Atomic. */
extern uint64_t monarch_cwd_is HIDDEN;
void monarch_cwd_may_differ(void);
/* Forgets it if the daemon has got another source since the last call. */
void monarch_sources_may_differ(const struct session *s);
