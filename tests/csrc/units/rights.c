#include "preload/session/rights.c"

#include "made.h"

EXPORT int rights_has_groups(struct session *s, const uint32_t *groups, uint64_t n) {
    return has_groups(s->control, groups, (long)n);
}
EXPORT int rights_has_daemons_groups(struct session *s) { return has_daemons_groups(s->control); }
EXPORT int rights_has_many_groups(struct session *s) { return has_many_groups(s->control); }
