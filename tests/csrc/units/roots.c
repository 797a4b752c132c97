#include "preload/session/roots.c"

#include "made.h"

EXPORT int roots_is_mounted_upon(const char *path) {
    return is_mounted_upon(path, (uint32_t)strlen(path));
}
EXPORT int roots_has_foreign_tier(struct session *s) { return foreign_tier(s->control) != NULL; }
EXPORT int roots_is_ours(struct session *s, unsigned source, int by_alias) {
    return monarch_root_is_ours_slow(s, source, by_alias);
}
EXPORT void roots_may_differ(void) { monarch_roots_may_differ(); }
